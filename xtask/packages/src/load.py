# SPDX-License-Identifier: Apache-2.0
"""Changes the roles of routers until the file STOP exists, then prints the number of changes of each router.

Each change waits until the node knows it, also while the node restarts: so the history must have every change once.
"""

import json
import os
import subprocess
import sys
import threading

STOP = "/run/load.stop"
ROUTERS = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(1, 9)]
CONF = """vrrp_instance VR_1 {{
    state BACKUP
    interface ha-{short}
    virtual_router_id 1
    priority 50
    nopreempt
    advert_int 2
    virtual_ipaddress {{
        169.254.0.1/24 dev ha-{short}
    }}
}}
"""
roles = {}
changed = threading.Condition()


def run(*words):
    subprocess.run(words, check=True)


def create(router):
    short, netns = router[:8], f"qrouter-{router}"
    directory = f"/var/lib/neutron/ha_confs/{router}"
    os.makedirs(directory, exist_ok=True)
    with open(f"{directory}/keepalived.conf", "w", encoding="ascii") as file:
        file.write(CONF.format(short=short))
    run("ip", "netns", "add", netns)
    run("ip", "-n", netns, "link", "add", f"ha-{short}", "type", "veth", "peer", "name", "peer")
    run("ip", "-n", netns, "link", "set", f"ha-{short}", "up")
    run("ip", "-n", netns, "link", "set", "peer", "up")


def poll():
    """Reads the roles again and again; while the node restarts, there is no answer."""
    while True:
        answer = subprocess.run(["vipwatch", "status", "-o", "json"], capture_output=True, check=False)
        try:
            document = json.loads(answer.stdout)
        except ValueError:
            continue
        if document.get("source") != "node":
            continue
        with changed:
            roles.update({item["id"]: item["role"] for item in document["instances"]})
            changed.notify_all()


def wait_for(router, role):
    with changed:
        changed.wait_for(lambda: roles.get(router) == role)


def change(router, counts):
    wait_for(router, "backup")
    short, netns = router[:8], f"qrouter-{router}"
    steps = [("add", "primary"), ("del", "backup")]
    while not os.path.exists(STOP):
        verb, role = steps[counts[router] % 2]
        run("ip", "-n", netns, "address", verb, "169.254.0.1/24", "dev", f"ha-{short}")
        counts[router] += 1
        wait_for(router, role)


def main():
    for router in ROUTERS:
        create(router)
    counts = dict.fromkeys(ROUTERS, 0)
    threading.Thread(target=poll, daemon=True).start()
    threads = [threading.Thread(target=change, args=(router, counts)) for router in ROUTERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open(sys.argv[1], "w", encoding="ascii") as file:
        json.dump(counts, file)


main()
