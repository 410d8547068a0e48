# SPDX-License-Identifier: Apache-2.0
"""Keystone's own server, with a database of its own.

Arguments: a directory, and the address and the port to listen on. The first line of standard
output is the id and the secret of an application credential that permits one request to Neutron.
For each line of standard input, the server replaces the keys of its tokens, so that no token is
valid any more, and writes a line. It runs until its standard input is closed.
"""

import json
import os
import socketserver
import subprocess
import sys
import threading
import urllib.request
from wsgiref import simple_server

directory, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
url = 'http://%s:%d/v3' % (address, port)
answers = os.fdopen(os.dup(1), 'w')
os.dup2(2, 1)
sys.argv = sys.argv[:1]

CONFIG = """
[database]
connection = sqlite:///{directory}/keystone.db
[fernet_tokens]
key_repository = {directory}/fernet
[credential]
key_repository = {directory}/credential
[identity]
# The smallest cost that Keystone accepts.
password_hash_rounds = 4
"""

config = os.path.join(directory, 'keystone.conf')
with open(config, 'w') as f:
    f.write(CONFIG.format(directory=directory))


def manage(*words):
    program = os.path.join(sys.prefix, 'bin', 'keystone-manage')
    subprocess.run([program, '--config-file', config, *words], check=True)


keys = os.path.join(directory, 'fernet')
os.makedirs(keys, mode=0o700)
os.makedirs(os.path.join(directory, 'credential'), mode=0o700)
owner = ['--keystone-user', str(os.getuid()), '--keystone-group', str(os.getgid())]
manage('db_sync')
manage('fernet_setup', *owner)
manage('credential_setup', *owner)
manage('bootstrap', '--bootstrap-password', 'admin-secret', '--bootstrap-public-url', url,
       '--bootstrap-internal-url', url, '--bootstrap-region-id', 'test')

os.environ['OS_KEYSTONE_CONFIG_FILES'] = config
from keystone.wsgi import api  # noqa: E402


def serve():
    class Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
        daemon_threads = True

    server = simple_server.make_server(address, port, api.application, server_class=Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def call(method, path, body=None, token=None):
    headers = {'Content-Type': 'application/json'}
    if token:
        headers['X-Auth-Token'] = token
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, headers=headers, method=method)
    with urllib.request.urlopen(request) as response:
        text = response.read()
        return response.headers, json.loads(text) if text else None


def login(user, password):
    domain = {'name': 'Default'}
    user = {'name': user, 'password': password, 'domain': domain}
    identity = {'methods': ['password'], 'password': {'user': user}}
    scope = {'project': {'name': 'admin', 'domain': domain}}
    headers, body = call('POST', '/auth/tokens', {'auth': {'identity': identity, 'scope': scope}})
    return headers['X-Subject-Token'], body['token']


def create_user(token, project, name, password):
    """A user with the role admin, which Neutron asks of the service and of list_l3_agents."""
    _, created = call('POST', '/users', {'user': {
        'name': name, 'password': password, 'domain_id': 'default'}}, token)
    _, roles = call('GET', '/roles?name=admin', None, token)
    user, role = created['user']['id'], roles['roles'][0]['id']
    call('PUT', '/projects/%s/users/%s/roles/%s' % (project, user, role), None, token)


serve()
token, body = login('admin', 'admin-secret')
project = body['project']['id']
call('POST', '/services', {'service': {'type': 'network', 'name': 'neutron'}}, token)
create_user(token, project, 'neutron', 'neutron-secret')
create_user(token, project, 'vipwatch', 'vipwatch-secret')
token, body = login('vipwatch', 'vipwatch-secret')
_, created = call('POST', '/users/%s/application_credentials' % body['user']['id'], {
    'application_credential': {
        'name': 'vipwatch',
        'access_rules': [
            {'service': 'network', 'method': 'GET', 'path': '/v2.0/routers/*/l3-agents'}],
    }}, token)
credential = created['application_credential']
print(json.dumps({'id': credential['id'], 'secret': credential['secret']}),
      file=answers, flush=True)
for _ in sys.stdin:
    for name in os.listdir(keys):
        os.remove(os.path.join(keys, name))
    manage('fernet_setup', *owner)
    print('{}', file=answers, flush=True)
