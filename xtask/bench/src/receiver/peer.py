# SPDX-License-Identifier: Apache-2.0
"""Runs Neutron's receiver, unmodified, with an agent that only counts reports."""
import sys
import threading
import types

from neutron.agent.l3 import ha


class Agent:
    def __init__(self):
        self.received = 0
        self.states = {}
        self.lock = threading.Lock()

    def enqueue_state_change(self, router_id, state):
        with self.lock:
            self.received += 1
            self.states[router_id] = state


def compute():
    while True:
        sum(range(10000))


agent = Agent()
if sys.argv[2] == 'busy':
    threading.Thread(target=compute, daemon=True).start()
server = ha.L3AgentKeepalivedStateChangeServer(
    agent, types.SimpleNamespace(state_path=sys.argv[1]))
server.run()
threading.Thread(target=server.wait, daemon=True).start()
print('ready', flush=True)
for _line in sys.stdin:
    print(agent.received, flush=True)
