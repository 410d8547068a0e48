"""Neutron's own receiver, unmodified, with an agent behind it that only counts."""
import sys
import threading
import types

from neutron.agent.l3 import ha


class Agent:
    def __init__(self):
        self.heard = 0
        self.states = {}
        self.lock = threading.Lock()

    def enqueue_state_change(self, router_id, state):
        with self.lock:
            self.heard += 1
            self.states[router_id] = state


def be_busy():
    while True:
        sum(range(10000))


agent = Agent()
if sys.argv[2] == 'busy':
    threading.Thread(target=be_busy, daemon=True).start()
server = ha.L3AgentKeepalivedStateChangeServer(
    agent, types.SimpleNamespace(state_path=sys.argv[1]))
server.run()
threading.Thread(target=server.wait, daemon=True).start()
print('ready', flush=True)
for _line in sys.stdin:
    print(agent.heard, flush=True)
