# t_rediscluster.py - a redis cluster: three masters with a replica each, load on all, kill -9 of a master, failover.
# SPDX-License-Identifier: Apache-2.0
#
# Every node talks to every other over the cluster bus, and is client and server there. Masters are the server of these
# tests, replicas and the test's own commands are the client.

import os
import signal

from harness import check, need, test, wait_until
from t_redis import cli, redis

OPTIONS = ("--cluster-enabled", "yes", "--cluster-node-timeout", 2000, "--cluster-replica-validity-factor", 0, "--appendfsync", "no")
BUS = 10000  # the bus is at the port + this


class Node:
    def __init__(self, ctx, name, side):
        self.ctx, self.name, self.side = ctx, name, side
        while True:  # the bus below the ephemeral ports, too
            self.port = ctx.port()
            if self.port + BUS < 32700:
                break
        self.start()

    def start(self):
        self.proc, _ = redis(self.ctx, self.side, self.name, *OPTIONS, port=self.port)
        self.ctx.wait_listening(self.port + BUS, self.proc)

    def says(self, text, *command):
        return text in cli(self.ctx, self.port, *command).replace("\r", "").split("\n")


class Cluster:
    def __init__(self, ctx):
        self.ctx = ctx
        self.nodes = [Node(ctx, f"master{n}", "server") for n in range(3)] + [Node(ctx, f"replica{n}", "client") for n in range(3)]
        addresses = [f"127.0.0.1:{node.port}" for node in self.nodes]
        said = ctx.run("client", [need("redis-cli"), "--cluster", "create", *addresses, "--cluster-replicas", 1, "--cluster-yes"], name="create")
        check("[OK] All 16384 slots covered" in said, said)
        self.until_whole(self.nodes)

    def until_whole(self, nodes):
        for node in nodes:
            wait_until(lambda: node.says("cluster_state:ok", "cluster", "info"), f"{node.name} does not see a whole cluster", 30)
            wait_until(lambda: node.says("role:master", "info", "replication") or node.says("master_link_status:up", "info", "replication"),
                       f"{node.name} is not in step", 30)

    def masters(self, nodes):
        return [node for node in nodes if node.says("role:master", "info", "replication")]

    def commands(self, node, lines):
        """Through redis-cli -c, which goes where it is redirected. The answers, in order."""
        script = self.ctx.write("commands", "".join(line + "\n" for line in lines))
        with open(script, "rb") as file:
            said = cli(self.ctx, node.port, "-c", stdin=file, name="redis-cli-c").split("\n")
        return [line for line in said if line and not line.startswith("-> Redirected")]

    def start_load(self, node, count):
        return self.ctx.start("client", [need("redis-benchmark"), "--cluster", "-p", node.port, "-c", 20, "-n", count, "-q", "-t", "set,get", "-r", 5000,
                                         "-d", 300], name="redis-benchmark")


@test(watchdog_s=120)
def redis_cluster_failover(ctx):
    cluster = Cluster(ctx)
    nodes = cluster.nodes
    load = cluster.start_load(nodes[0], 20_000 if ctx.fast else 1_000_000)
    ctx.expect_path(nodes[1].port)
    if ctx.mode == "both":
        ctx.expect_path(nodes[1].port + BUS)
    load.wait(100)
    check(load.output().count("requests per second") >= 2 and "rror" not in load.output(), load.output()[-800:])
    count, left = 1000, nodes
    for number in range(1 if ctx.fast else 3):
        answers = cluster.commands(left[0], [f"set known:{n} value:{number}:{n}" for n in range(count)])
        check(answers == ["OK"] * count, f"{len(answers)} answers, e.g. {sorted(set(answers) - {'OK'})[:3]}")
        masters = cluster.masters(left)
        check(len(masters) == 3, f"masters: {[m.name for m in masters]}")
        load = cluster.start_load(left[0], 100_000_000)
        ctx.expect_path(masters[0].port)
        victim = ctx.random.choice(masters)
        # What redis has acknowledged it may lose with a master, unless a replica has it.
        for master in masters:
            check(master.says("1", "wait", 1, 20000), f"no replica of {master.name} acknowledges")
        os.kill(victim.proc.pid, signal.SIGKILL)
        victim.proc.wait(expect=-signal.SIGKILL)
        load.wait(30, expect=1)
        left = [node for node in nodes if node is not victim]
        wait_until(lambda: len(cluster.masters(left)) == 3, "no replica takes over", 30)
        cluster.until_whole(left)
        answers = cluster.commands(left[0], [f"get known:{n}" for n in range(count)])
        check(answers == [f"value:{number}:{n}" for n in range(count)], "values differ after the failover")
        victim.start()
        cluster.until_whole(nodes)
        left = nodes
        check(len(cluster.masters(nodes)) == 3, "the master that was killed is one again")
    check(all(node.proc.alive() for node in nodes), "a node ended")
