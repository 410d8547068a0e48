// SPDX-License-Identifier: Apache-2.0
/*
 * The lower bound on this machine: only what every monitor must do between the kernel's event and the agent.
 * It reads one netlink event, replaces one file by rename, sends one request to the agent and reads the answer.
 * It does not log, check or retry. It exists for `cargo xtask bench dropin` and is not a monitor.
 *
 * Usage, in the namespace of the router: limit LINK ADDRESS STATE_FILE SOCKET ROUTER PID_FILE
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* The temporary file that is renamed. */
static char temporary[4096];

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void replace(const char *path, const char *word)
{
	int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (file < 0 || write(file, word, strlen(word)) < 0)
		fail(temporary);
	close(file);
	if (rename(temporary, path))
		fail(path);
}

static void report(const struct sockaddr_un *agent, const char *router, const char *word)
{
	char text[1024];
	int length = snprintf(text, sizeof(text),
			      "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Neutron-Router-Id: %s\r\n"
			      "X-Neutron-State: %s\r\nConnection: close\r\n\r\n", router, word);
	int to = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (to < 0 || connect(to, (const struct sockaddr *)agent, sizeof(*agent)))
		fail(agent->sun_path);
	if (send(to, text, length, MSG_NOSIGNAL) == length)
		while (recv(to, text, sizeof(text), 0) > 0)
			;
	close(to);
}

/* Whether the message concerns the address on the link. */
static int concerns(const struct nlmsghdr *message, unsigned int link, struct in_addr address)
{
	const struct ifaddrmsg *head = NLMSG_DATA(message);
	int left = IFA_PAYLOAD(message);

	if (head->ifa_index != link)
		return 0;
	for (struct rtattr *each = IFA_RTA(head); RTA_OK(each, left); each = RTA_NEXT(each, left))
		if (each->rta_type == IFA_LOCAL && !memcmp(RTA_DATA(each), &address, sizeof(address)))
			return 1;
	return 0;
}

int main(int count, char **words)
{
	static char buffer[32768];
	struct sockaddr_nl groups = { .nl_family = AF_NETLINK,
				      .nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR };
	struct sockaddr_un agent = { .sun_family = AF_UNIX };
	struct in_addr address;
	char pid[16];

	if (count != 7 || !inet_aton(words[2], &address))
		return 2;
	unsigned int link = if_nametoindex(words[1]);
	int kernel = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	if (!link || kernel < 0 || bind(kernel, (struct sockaddr *)&groups, sizeof(groups)))
		fail("netlink");
	snprintf(agent.sun_path, sizeof(agent.sun_path), "%s", words[4]);
	snprintf(temporary, sizeof(temporary), "%s.new", words[6]);
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	replace(words[6], pid);
	snprintf(temporary, sizeof(temporary), "%s.new", words[3]);
	replace(words[3], "backup");
	for (;;) {
		int left = recv(kernel, buffer, sizeof(buffer), 0);

		for (struct nlmsghdr *message = (struct nlmsghdr *)buffer; NLMSG_OK(message, left);
		     message = NLMSG_NEXT(message, left)) {
			int is_new = message->nlmsg_type == RTM_NEWADDR;

			if (!is_new && message->nlmsg_type != RTM_DELADDR)
				continue;
			if (!concerns(message, link, address))
				continue;
			replace(words[3], is_new ? "primary" : "backup");
			report(&agent, words[5], is_new ? "primary" : "backup");
		}
	}
}
