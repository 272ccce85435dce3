"""Messages that follow from something else: a killed process, a peer that went away, a warning.

They name the cause only when no rank says anything better. Order matters within a weight: the first ones tell
most.
"""

from __future__ import annotations

from launcher.failure_rule import Rule, Weight, make_rule

NOISE = make_rule(
    "noise",
    Weight.NOISE,
    r"Received sigquit from a child|^SIGQUIT received|Sleeping 5 seconds before crash diag|No live"
    r" scheduler proc|Pyspy failed|CUDA coredump|kill_process_tree called|^EOFError$|^KeyboardInterrupt|"
    r"^SystemExit|GoAway|^asyncio\.exceptions\.CancelledError|status=5 ",
    "",
    "",
)

DEATHS: tuple[Rule, ...] = (
    make_rule(
        "killed-while-starting",
        Weight.DEATH,
        r"Rank \d+ scheduler died during initialization \(exit code: -9\)",
        "The scheduler process on {node} was killed with signal 9 during the start, most often by the"
        " kernel's OOM killer. (The rank number in the message is local to the node.)",
        "`sudo dmesg -T | grep -iE 'oom|killed process'` on {node} confirms it; then lower"
        " mem_fraction_static or free memory.",
    ),
    make_rule(
        "died-while-starting",
        Weight.DEATH,
        r"Rank \d+ scheduler died during initialization \(exit code: (?P<code>-?\d+)\)",
        "The scheduler process on {node} ended with {code} during the start.",
        "`sparkctl logs` shows its last lines; with a negative code see `sudo dmesg -T` on {node}.",
    ),
    make_rule(
        "killed-while-serving",
        Weight.DEATH,
        r"(?:Subprocess (?P<name>\S+) \(pid=\d+\) crashed with exit code|Scheduler or"
        r" DataParallelController \d+ terminated with) -9\b",
        "A scheduler process on {node} was killed with signal 9 while serving: by the kernel's OOM killer"
        " or by hand.",
        "`sudo dmesg -T | grep -iE 'oom|killed process'` on {node} tells which.",
    ),
    make_rule(
        "crashed-while-serving",
        Weight.DEATH,
        r"(?:Subprocess \S+ \(pid=\d+\) crashed with exit code|Scheduler or DataParallelController \d+"
        r" terminated with) (?P<code>-?[1-9]\d*)",
        "An engine process on {node} crashed with {code}.",
        "`sparkctl logs` shows the lines before; `sudo dmesg -T` on {node} shows GPU faults (Xid).",
    ),
    make_rule(
        "warmup-failed",
        Weight.DEATH,
        r"Initialization failed\. warmup error:",
        "The server came up but could not answer its own first request.",
        "`sparkctl logs` shows the traceback that follows this line.",
    ),
)

NETWORK: tuple[Rule, ...] = (
    make_rule(
        "watchdog-frozen-peer",
        Weight.NETWORK,
        r"Scheduler watchdog timeout",
        "{node} waited for a batch longer than the watchdog allows. The line names the rank that waited;"
        " a peer that is frozen, or the fabric, is the cause.",
        "`sparkctl status` shows which node does not answer; look at that node first.",
    ),
    make_rule(
        "worker-never-came",
        Weight.NETWORK,
        r"Timed out after \d+ seconds waiting for clients\. (?P<joined>\d+)/(?P<total>\d+) clients joined",
        "Only {joined} of {total} ranks reached the head at the rendezvous.",
        "Look at the ranks that have no `Init parallel ends` line; check that they can reach the head's"
        " fabric address and port (`nc -vz HEAD PORT`).",
    ),
    make_rule(
        "head-never-came",
        Weight.NETWORK,
        r"client socket has timed out after \d+ms while trying to connect to \((?P<host>[^,]+),"
        r" (?P<port>\d+)\)",
        "{node} could not reach the head at {host} port {port}.",
        "From {node}: `nc -vz {host} {port}` while the head starts; check the head's log, the fabric"
        " address and the firewall.",
    ),
    make_rule(
        "mesh-failed",
        Weight.NETWORK,
        r"Gloo connectFullMesh failed",
        "{node} could not connect to another rank: a firewall, a wrong subnet, or an interface that"
        " resolves to 127.0.0.1.",
        "Check GLOO_SOCKET_IFNAME and SGLANG_HOST_IP in `sparkctl plan` and ping every fabric address"
        " from {node}.",
    ),
    make_rule(
        "rendezvous-timeout",
        Weight.NETWORK,
        r"DistStoreError: wait timeout after (?P<ms>\d+)ms",
        "{node} waited {ms} ms at the rendezvous for a rank that never answered.",
        "Look at the other ranks' last lines; the one that stopped first is the cause.",
    ),
    make_rule(
        "slow-or-failed-loader",
        Weight.NETWORK,
        r"failed to pass monitoredBarrier|other ranks that didn't finish loading",
        "Another rank did not finish loading.",
        "Look at the other ranks; with no error there, that node's disk is slow: compare `Load weight"
        " end` times.",
    ),
    make_rule(
        "rdma-peer-gone",
        Weight.NETWORK,
        r"NET/IB ?: Got completion from peer (?P<peer>\S+) with status=(?P<status>12|13)\b",
        "RDMA traffic from {node} to {peer} got no answer: the peer or its link went away.",
        "Ping that fabric address from {node} and look at `ibstat` and the cable on both ends.",
    ),
    make_rule(
        "collective-timeout",
        Weight.NETWORK,
        r"Watchdog caught collective operation timeout|Timeout at NCCL work",
        "A collective did not end in time: one rank is stuck or gone.",
        "Of the `last completed NCCL work` numbers in `sparkctl logs`, the rank with the lowest is the"
        " suspect.",
    ),
    make_rule(
        "nccl-error",
        Weight.NETWORK,
        r"NCCL error|ncclSystemError|ncclInternalError|ncclRemoteError|DistBackendError|Socket recv"
        r" failed while polling|socketProgress: Connection closed|remote process exited or there was a"
        r" network error",
        "NCCL failed on {node}; the reason is in the NCCL WARN lines before, here or on a peer.",
        "`sparkctl logs | grep 'NCCL WARN'`; if there are none, start again with NCCL_DEBUG=INFO.",
    ),
    make_rule(
        "peer-gone",
        Weight.NETWORK,
        # Not ConnectionResetError: that is a client of the API that hung up.
        r"gloo/transport/tcp/\w+\.cc|^(?:RuntimeError|torch\.distributed\.\w+): .*Connection (?:reset|closed)"
        r"|Connection closed by remote peer|recvValue failed|failed to recv, got 0 bytes",
        "The connection from {node} to another rank broke: that rank or its node is gone.",
        "Look at the other ranks and nodes: `sparkctl status`.",
    ),
    make_rule(
        "peer-refused",
        Weight.NETWORK,
        r"(?:DistNetworkError|DistStoreError|gloo|c10d).*(?:Connection refused|timed out|timeout|unreachable"
        r"|No route to host)",
        "{node} could not reach another rank over the network.",
        "Ping every fabric address from {node}; check the firewall and the interface names in the topology.",
    ),
)

WARNINGS: tuple[Rule, ...] = (
    make_rule(
        "frozen-while-idle",
        Weight.WARNING,
        r"Health check failed\. Server couldn't get a response from detokenizer",
        "The engine takes requests but answers none. With no batch running the watchdog stays silent: a"
        " frozen worker looks like this.",
        "`sparkctl status` sends a probe to each node; then `sparkctl down` and `sparkctl up`.",
    ),
    make_rule(
        "wedged",
        Weight.WARNING,
        r"but the state was deleted in TokenizerManager",
        "Answers arrive for requests that are gone: with `accept rate: 0.00` the ranks have lost step.",
        "`sparkctl down`, then `sparkctl up`.",
    ),
    make_rule(
        "tensors-not-loaded",
        Weight.WARNING,
        r"not found in params_dict|Some weights are not initialized from checkpoints",
        "Some tensors of the checkpoint were not used: the model will answer garbage.",
        "Compare the checkpoint's revision with the one that the recipe names.",
    ),
    make_rule(
        "rdma-not-used",
        Weight.WARNING,
        r"NET/IB ?: No device found|NET/Socket ?: Using \[0\]",
        "NCCL runs over TCP sockets, not RDMA: it works, several times slower.",
        "`ibv_devinfo` on {node} (in the container: --device /dev/infiniband); set hcas in the topology.",
    ),
    make_rule(
        "memory-held-by-others",
        Weight.WARNING,
        r"memory capacity is unbalanced",
        "Other processes hold memory on {node}; the check is off, so the engine went on.",
        "`nvidia-smi` and `free -g` on {node}; end what is left of earlier runs (`sparkctl down`).",
    ),
    make_rule(
        "stopped",
        Weight.WARNING,
        r"^SIGTERM received\. signum=",
        "The engine on {node} was asked to stop (SIGTERM) and did.",
        "If that was not `sparkctl down`, look for who ended it: docker stop, systemd, a log-out.",
    ),
)
