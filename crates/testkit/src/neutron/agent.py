# SPDX-License-Identifier: Apache-2.0
"""The parts of Neutron's own agent that a monitor interacts with.

The classes are those of the installed release: ProcessManager starts, finds and stops
monitors; the state change server receives their states; AgentMixin.enqueue_state_change
applies them; and BatchNotifier sends them to neutron-server, which a dictionary replaces here.
These classes are unchanged. The objects that they need (routers, an RPC client) are minimal
replacements.

The program reads commands from standard input and writes answers to standard output, each as
one line of JSON.
"""

import json
import os
import sys
import time

from oslo_config import cfg

from neutron import privileged
from neutron.agent.l3 import ha
from neutron.agent.linux import external_process
from neutron.conf import common as common_conf
from neutron.conf.agent import common as agent_conf
from neutron.conf.agent.l3 import ha as ha_conf

SERVICE = 'neutron-keepalived-state-change-monitor'


class Router:
    """The attributes and methods of a router that AgentMixin uses."""

    def __init__(self, agent, router_id, conf_dir):
        self.agent = agent
        self.router_id = router_id
        self.router = {}
        self.ns_name = 'qrouter-' + router_id
        self.ex_gw_port = None
        self._state_file = os.path.join(conf_dir, 'state')
        self._ha_state = None

    @property
    def ha_state(self):
        return self._ha_state

    @ha_state.setter
    def ha_state(self, new_state):
        self._ha_state = new_state
        try:
            with open(self._state_file, 'w') as f:
                f.write(new_state)
        except OSError:
            pass

    def enable_radvd(self):
        pass

    def disable_radvd(self):
        pass


class Server:
    """Stores the states that the agent sends to neutron-server."""

    def __init__(self):
        self.states = {}

    def update_ha_routers_states(self, _context, states):
        self.states.update(states)


class Extensions:
    def ha_state_change(self, _context, _data):
        pass


class Host:
    """The last base class of AgentMixin."""

    def __init__(self, host):
        self.host = host

    def init_host(self):
        pass


class Agent(ha.AgentMixin, Host):
    def __init__(self, conf):
        self.conf = conf
        self.router_info = {}
        self.use_ipv6 = False
        self.context = None
        self.plugin_rpc = Server()
        self.l3_ext_manager = Extensions()
        super().__init__('here')


def configure(state_path, advert_int, root_helper):
    conf = cfg.CONF
    common_conf.register_core_common_config_opts(conf)
    agent_conf.register_external_process_opts(conf)
    agent_conf.register_root_helper(conf)
    ha_conf.register_l3_agent_ha_opts(conf)
    for option in ('enable_metadata_proxy',):
        try:
            conf.register_opt(cfg.BoolOpt(option, default=False))
        except cfg.DuplicateOptError:
            pass
    conf([], project='neutron', default_config_files=[], default_config_dirs=[])
    conf.set_override('state_path', state_path)
    conf.set_override('external_pids', os.path.join(state_path, 'external/pids'))
    conf.set_override('ha_confs_path', os.path.join(state_path, 'ha_confs'))
    conf.set_override('ha_vrrp_advert_int', advert_int)
    conf.set_override('enable_metadata_proxy', False)
    conf.set_override('root_helper', root_helper, group='AGENT')
    # This process does itself what a real agent does through a privileged daemon.
    privileged.default.set_client_mode(False)
    return conf


class CommandServer:
    """Runs the commands of the test."""

    def __init__(self, state_path, advert_int, release, root_helper, routers):
        self.conf = configure(state_path, advert_int, root_helper)
        self.release = release
        self.agent = Agent(self.conf)
        self.managers = {}
        for call in routers:
            self.do_add(call)
        # From here on monitors can connect.
        self.agent.init_host()

    def command_line(self, call):
        def callback(pid_file):
            pairs = [('router_id', call['router']), ('namespace', call['netns']),
                     ('conf_dir', call['conf_dir']),
                     ('log-file', call['conf_dir'] + '/neutron-keepalived-state-change.log'),
                     ('monitor_interface', call['link']), ('monitor_cidr', call['cidr']),
                     ('pid_file', pid_file), ('state_path', self.conf.state_path),
                     ('user', os.geteuid()), ('group', os.getegid())]
            line = ['neutron-keepalived-state-change']
            for name, value in pairs:
                if self.release >= 29:
                    line += ['--' + name, str(value)]
                else:
                    line += ['--%s=%s' % (name, value)]
            return line + ['--debug']
        return callback

    def manager(self, call):
        router = call['router']
        if router not in self.managers:
            extra = {'async_process': True} if self.release >= 29 else {}
            self.managers[router] = external_process.ProcessManager(
                self.conf, router + '.monitor', namespace=None, service=SERVICE,
                default_cmd_callback=self.command_line(call), run_as_root=True, **extra)
        return self.managers[router]

    def do_add(self, call):
        self.agent.router_info[call['router']] = Router(
            self.agent, call['router'], call['conf_dir'])

    def do_enable(self, call):
        self.manager(call).enable()

    def do_active(self, call):
        return self.manager(call).active

    def do_pid(self, call):
        return self.manager(call).pid

    def do_disable(self, call):
        self.manager(call).disable(sig='15')

    def do_applied(self, _call):
        return {router: info.ha_state for router, info in self.agent.router_info.items()}

    def do_reported(self, _call):
        return dict(self.agent.plugin_rpc.states)


def main():
    state_path, advert_int, release, root_helper = sys.argv[1:]
    routers = json.loads(sys.stdin.readline())
    # A killed predecessor leaves its socket. Without it, the socket that appears below is that of this agent.
    socket_path = os.path.join(state_path, 'keepalived-state-change')
    if os.path.exists(socket_path):
        os.unlink(socket_path)
    server = CommandServer(state_path, int(advert_int), int(release), root_helper, routers)
    while not os.path.exists(socket_path):
        time.sleep(0.01)
    print(json.dumps('ready'), flush=True)
    for line in sys.stdin:
        call = json.loads(line)
        try:
            answer = getattr(server, 'do_' + call['do'])(call)
        except Exception as exc:
            answer = {'error': repr(exc)}
        print(json.dumps(answer), flush=True)
    # Threads that wait for a monitor would keep the process alive. A killed agent does not wait
    # for them either.
    os._exit(0)


if __name__ == '__main__':
    main()
