# SPDX-License-Identifier: Apache-2.0
"""Neutron's own API server, with a database of its own.

The WSGI application is that of the installed release, with the plugins ml2 and router. Its
tables are those of the release's models. The rows of agents, routers and bindings are written
with these models, because no agent runs that the scheduler could choose; the states change by
the method that the agents' reports lead to (update_routers_states).

Arguments: a directory, the address and the port to listen on, and Keystone's address or nothing
for a server without authentication. The variables TLS_CERTIFICATE and TLS_KEY name files
for https. The program reads commands from standard input and writes
answers to standard output, each as one line of JSON.
"""

import json
import os
import socketserver
import ssl
import sys
import threading
import uuid
from wsgiref import simple_server

directory, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
keystone = sys.argv[4] if len(sys.argv) > 4 else None
# Neutron's own code writes to standard output in places; only answers belong there.
answers = os.fdopen(os.dup(1), 'w')
os.dup2(2, 1)
sys.argv = sys.argv[:1]

CONFIG = """
[DEFAULT]
core_plugin = ml2
service_plugins = router
auth_strategy = {strategy}
transport_url = fake://
api_paste_config = {paste}
state_path = {directory}
# The agents of the test send no heartbeats.
agent_down_time = 1000000
[database]
connection = sqlite:///{directory}/neutron.db
[oslo_concurrency]
lock_path = {directory}
[ml2]
mechanism_drivers =
type_drivers = flat
tenant_network_types =
[oslo_policy]
enforce_scope = true
{keystone}
"""

KEYSTONE = """
[keystone_authtoken]
www_authenticate_uri = {url}
auth_url = {url}
auth_type = password
username = neutron
password = neutron-secret
project_name = admin
user_domain_name = Default
project_domain_name = Default
service_type = network
# Keystone is asked about each token.
token_cache_time = -1
"""

with open(os.path.join(directory, 'neutron.conf'), 'w') as f:
    f.write(CONFIG.format(
        directory=directory,
        paste=os.path.join(sys.prefix, 'etc/neutron/api-paste.ini'),
        strategy='keystone' if keystone else 'noauth',
        keystone=KEYSTONE.format(url=keystone) if keystone else ''))
os.environ['OS_NEUTRON_CONFIG_DIR'] = directory
os.environ['OS_NEUTRON_CONFIG_FILES'] = 'neutron.conf'

import sqlalchemy  # noqa: E402
from neutron.db.migration.models import head  # noqa: E402

engine = sqlalchemy.create_engine('sqlite:///%s/neutron.db' % directory)
head.get_metadata().create_all(engine)

from neutron_lib import context  # noqa: E402
from neutron_lib.plugins import directory as plugins  # noqa: E402
from neutron.db.models import agent as agent_model  # noqa: E402
from neutron.db.models import l3 as l3_model  # noqa: E402
from neutron.db.models import l3_attrs  # noqa: E402
from neutron.db.models import l3ha  # noqa: E402
from neutron.db import models_v2  # noqa: E402
from neutron.wsgi import api  # noqa: E402
from neutron_lib.db import api as db_api  # noqa: E402
from oslo_utils import timeutils  # noqa: E402

admin = context.get_admin_context()


def add_router(router, hosts):
    """An HA router that is scheduled to these hosts, with the default state standby."""
    project, network = uuid.uuid4().hex, str(uuid.uuid4())
    with db_api.CONTEXT_WRITER.using(admin):
        admin.session.add(models_v2.Network(
            id=network, name='HA network', project_id=project, admin_state_up=True))
        admin.session.add(l3_model.Router(
            id=router, name=router, project_id=project, status='ACTIVE', admin_state_up=True))
        admin.session.flush()
        admin.session.add(l3_attrs.RouterExtraAttributes(router_id=router, ha=True, ha_vr_id=1))
        for number, host in enumerate(hosts):
            agent = agent_of(host)
            port_id = str(uuid.uuid4())
            admin.session.add(models_v2.Port(
                id=port_id, name='HA port', network_id=network, project_id=project,
                mac_address='fa:16:3e:00:00:%02x' % number, admin_state_up=True,
                status='ACTIVE', device_id=router,
                device_owner='network:router_ha_interface'))
            admin.session.flush()
            admin.session.add(l3ha.L3HARouterAgentPortBinding(
                port_id=port_id, router_id=router, l3_agent_id=agent))


def agent_of(host):
    known = admin.session.query(agent_model.Agent).filter_by(host=host).first()
    if known:
        return known.id
    now, agent = timeutils.utcnow(), str(uuid.uuid4())
    admin.session.add(agent_model.Agent(
        id=agent, agent_type='L3 agent', binary='neutron-l3-agent', topic='l3_agent',
        host=host, admin_state_up=True, created_at=now, started_at=now,
        heartbeat_timestamp=now, configurations='{}', load=0))
    admin.session.flush()
    return agent


def set_state(router, host, state):
    plugins.get_plugin('L3_ROUTER_NAT').update_routers_states(admin, {router: state}, host)


def serve():
    class Server(socketserver.ThreadingMixIn, simple_server.WSGIServer):
        daemon_threads = True

    server = simple_server.make_server(address, port, api.application, server_class=Server)
    if 'TLS_KEY' in os.environ:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(os.environ['TLS_CERTIFICATE'], os.environ['TLS_KEY'])
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


COMMANDS = {'add_router': add_router, 'set_state': set_state}

serve()
print('"ready"', file=answers, flush=True)
for line in sys.stdin:
    call = json.loads(line)
    try:
        COMMANDS[call.pop('do')](**call)
        answer = {}
    except Exception as error:
        answer = {'error': repr(error)}
    print(json.dumps(answer), file=answers, flush=True)
