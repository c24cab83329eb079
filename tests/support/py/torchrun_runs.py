"""Command lines that are run by torchrun and by crun, to the end (see launcher_pair.py)."""

import shlex

import torch

from launcher_pair import Row

PROBE = "probe.py"
SHELL_PROBE = '#!/bin/sh\nexec python3 probe.py "$@"\n'


def run(name, words, **more):
    return Row(name, shlex.split(words), **more)


SIZE = [
    run("plain", "probe.py a b", ci=True),
    run("standalone", "--standalone probe.py"),
    run("two workers", "--standalone --nproc-per-node=2 probe.py say", ci=True),
    run("five workers", "--standalone --nproc_per_node 5 probe.py"),
    run("cpu", "--nproc-per-node=cpu probe.py"),
    run("auto", "--nproc-per-node=auto probe.py", env={"CUDA_VISIBLE_DEVICES": ""}),
    run("nnodes 1", "--nnodes=1 --nproc-per-node=2 probe.py"),
    run("nnodes 1:1", "--nnodes 1:1 --nproc-per-node=2 probe.py"),
    run("no GPU", "--nproc-per-node=gpu probe.py", env={"CUDA_VISIBLE_DEVICES": ""}, says="Cuda is not available"),
    run("no Intel GPU", "--nproc-per-node=xpu probe.py", says="Xpu is not available"),
    run("nproc 0", "--nproc-per-node=0 probe.py"),
    run("nproc -1", "--nproc-per-node=-1 probe.py"),
    run("threads of one worker", "probe.py", without=("OMP_NUM_THREADS",)),
    run("threads of two workers", "--nproc-per-node=2 probe.py", without=("OMP_NUM_THREADS",), ci=True, says="OMP_NUM_THREADS"),
    run("threads given", "--nproc-per-node=2 probe.py", env={"OMP_NUM_THREADS": "3"}),
]

RENDEZVOUS = [
    run("static by port", "--nproc-per-node=2 --master-port=@PORT@ probe.py", ci=True),
    run("static by address and port", "--master-addr=localhost --master-port=@PORT@ --nproc-per-node=2 probe.py"),
    run("static by port 0", "--master-port=0 probe.py"),
    run("static with IPv6", "--rdzv-endpoint=[::1]:@PORT@ probe.py"),
    run("static with id", "--master-port=@PORT@ --rdzv-id=job7 --node-rank=0 probe.py"),
    run("static by endpoint", "--rdzv-endpoint=127.0.0.1:@PORT@ --nproc-per-node=2 probe.py"),
    run("static by named endpoint", "--rdzv-endpoint=localhost:@PORT@ --rdzv-id=x probe.py"),
    run("static, endpoint without port", "--rdzv-endpoint=localhost probe.py", says="port is missing in endpoint"),
    run("static, no port number", "--rdzv-endpoint=localhost:port probe.py"),
    run("static, port too large", "--rdzv-endpoint=localhost:70000 probe.py"),
    run("address without port is ignored", "--master-addr=10.9.8.7 probe.py"),
    run("c10d on localhost", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=abc probe.py", ci=True),
    run("c10d, no id", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 probe.py"),
    run("c10d, two workers, conf", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=1 "
        "--rdzv-conf=join_timeout=20,last_call_timeout=1 --nproc-per-node=2 probe.py"),
    run("c10d, empty id", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id= probe.py"),
    run("c10d, host by conf", "--rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:0 --rdzv-conf=is_host=1 probe.py"),
    run("c10d, local address", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --local-addr=127.0.0.1 probe.py"),
    run("c10d, bad endpoint", "--rdzv-backend=c10d --rdzv-endpoint=tcp://localhost:1 probe.py"),
    run("c10d, node rank", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --node-rank=1 probe.py"),
    run("standalone beats the rest", "--standalone --rdzv-backend=c10d --rdzv-endpoint=nowhere:1 --rdzv-id=x probe.py"),
    run("unknown backend", "--rdzv-backend=nope probe.py", says="rendezvous backend 'nope' is not registered"),
    run("conf without value", "--rdzv-conf=a= probe.py", says="must have a value specified"),
    run("conf of spaces", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 '--rdzv-conf= timeout = 5 ' probe.py"),
    run("conf with a comma too many", "--rdzv-conf=timeout=5, probe.py"),
    run("conf, negative timeout", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-conf=join_timeout=-1 probe.py"),
    run("conf, close timeout is no number", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-conf=close_timeout=x probe.py"),
    run("conf, heartbeat timeout 0", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-conf=heartbeat_timeout=0 probe.py"),
    run("conf, read timeout 0", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-conf=read_timeout=0 probe.py"),
    run("conf, keep-alive is no number", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-conf=keep_alive_interval=x probe.py"),
    run("conf, backoff", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-conf=cas_backoff_max_seconds=0.5 probe.py"),
    run("conf, backoff is no number", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-conf=cas_backoff_max_seconds=x probe.py",
        since=(2, 15)),
    run("conf, backoff is infinite", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-conf=cas_backoff_max_seconds=inf probe.py",
        since=(2, 15)),
    run("conf, unknown store", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-conf=store_type=etcd probe.py"),
    run("conf of static with c10d", "--nnodes=1 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-conf=timeout=900.0 probe.py"),
    run("conf in quotes", "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 "
        "--rdzv-conf=\\'join_timeout=5,last_call_timeout=1,timeout=5\\' probe.py"),
    run("join timeout with static", "--master-port=@PORT@ --rdzv-conf=join_timeout=0,is_host=perhaps,last_call_timeout=x probe.py"),
    run("timeout with static is no number", "--master-port=@PORT@ --rdzv-conf=timeout=900.0 probe.py"),
    run("conf of c10d with static", "--master-port=@PORT@ --rdzv-conf=close_timeout=x,read_timeout=-1,store_type=etcd probe.py"),
    run("local address alone", "--local-addr=127.0.0.1 probe.py"),
]

PROGRAM = [
    run("module", "-m pack.inner x", files=(("pack/__init__.py", ""), ("pack/inner.py", "import probe; probe.main()")), ci=True),
    run("module by long name, grouped", "-mt 3 pack.inner say", files=(("pack/inner.py", "import probe; probe.main()"),)),
    run("module that is missing", "-m nosuchmodule"),
    run("no python", "--no-python python3 -u probe.py say", ci=True),
    run("no python, by path", "--no-python ./probe.sh say", files=(("probe.sh", SHELL_PROBE),)),
    run("no python, failing", "--no-python sh -c 'exit 3'"),
    run("no python, by full path", "--no-python /bin/sh -c 'exec python3 probe.py say $RANK'"),
    run("no python, missing", "--no-python nosuchprogram"),
    run("no python with module", "--no-python -m probe", says="Don't use both the '--no-python' flag"),
    run("run path", "--run-path probe.py a", differs=("Run path",)),
    run("script missing", "nosuch.py", differs=("Missing program",)),
    run("script with a shebang", "./tool say", files=(("tool", SHELL_PROBE),), differs=("Own programs",)),
    run("script with a shebang of Python", "./tool say", files=(("tool", "#!/usr/bin/env python3\nimport probe; probe.main()"),)),
    run("script of pip for a long path", "./tool say", files=(("tool", "#!/bin/sh\n'\'\'exec' \"python3\" \"$0\" \"$@\"\n' '\'\'\nimport probe; probe.main()"),)),
    run("script whose shebang has options", "./tool say", files=(("tool", "#!/usr/bin/env -S python3 -B\nimport probe; probe.main()"),)),
    run("script without suffix", "tool say", files=(("tool", "import probe; probe.main()"),)),
    run("folder", "pack x", files=(("pack/__main__.py", "import sys; sys.path.insert(0, '.'); import probe; probe.main()"),)),
    run("script in a folder", "sub/dir/p.py x", files=(("sub/dir/p.py", "import sys; sys.path.insert(0, '.'); import probe; probe.main()"),)),
    run("python by PYTHON_EXEC", "probe.py say", env={"PYTHON_EXEC": "./mine"}, files=(("mine", "#!/bin/sh\necho mine\nexec python3 \"$@\"\n"),)),
    run("templates", "--nproc-per-node=2 probe.py '${local_rank}' '$local_rank' '$$' '$$local_rank' '$local_ranks' '{local_rank}' "
        "'a${local_rank}b' '$x' '${x}' '$' '${local_rank' '$RANK'", ci=True),
    run("template in the script", "--nproc-per-node=2 'probe$local_rank.py' x",
        files=(("probe0.py", "import probe; probe.main()"), ("probe1.py", "import probe; probe.main()"))),
    run("template without python", "--nproc-per-node=2 --no-python python3 probe.py 'r=$local_rank'"),
    run("words like options", "probe.py --nnodes 5 --standalone -m -t 3 -h --help --unknown --version"),
    run("word like two options", "probe.py --nproc 5", differs=("Words behind the program",)),
    run("script of the standard input", "- a", input="import probe; probe.main()\n"),
    run("module after dashes", "-- -m probe a"),
    run("script after dashes", "-- probe.py a"),
    run("dashes after the script", "probe.py -- a -- b"),
    run("empty argument", "probe.py '' ' ' 'a b'"),
    run("words with newlines", "probe.py 'a\nb' 'tab\there' 'ünïcödé'"),
    run("standard input", "probe.py read", input="line 1\nline 2\n"),
    run("environment is passed on", "probe.py", env={"A_B": "x=y", "EMPTY": "", "PET_MAX_RESTARTS": "2", "LOGLEVEL": "INFO"}),
    run("variables that torchrun sets, set before", "--nproc-per-node=2 probe.py",
        env={"RANK": "9", "WORLD_SIZE": "99", "MASTER_ADDR": "elsewhere", "MASTER_PORT": "1", "LOCAL_RANK": "8",
             "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "ROLE_NAME": "old", "TORCHELASTIC_RUN_ID": "old"}, ci=True),
    run("role", "--role=trainer --nproc-per-node=2 -t3 probe.py say", shuffles=False),
    run("start method", "--start-method=fork probe.py"),
    run("virtual local rank", "--virtual-local-rank --nproc-per-node=2 probe.py '$local_rank'", ci=True),
    run("virtual local rank, devices", "--virtual-local-rank --nproc-per-node=2 probe.py", env={"CUDA_VISIBLE_DEVICES": "3, 5 ,7"}),
    run("virtual local rank, too few devices", "--virtual-local-rank --nproc-per-node=2 probe.py",
        env={"CUDA_VISIBLE_DEVICES": "3"}, says="exceeds available GPUs"),
    run("virtual local rank, HIP", "--virtual-local-rank --nproc-per-node=2 probe.py", since=(2, 15),
        env={"HIP_VISIBLE_DEVICES": "3, 5", "CUDA_VISIBLE_DEVICES": "1,2", "ROCR_VISIBLE_DEVICES": "0,1,2,3,4,5"}),
    run("virtual local rank, HIP empty", "--virtual-local-rank --nproc-per-node=2 probe.py", env={"HIP_VISIBLE_DEVICES": ""}),
    run("virtual local rank, HIP, too few", "--virtual-local-rank --nproc-per-node=2 probe.py",
        env={"HIP_VISIBLE_DEVICES": "3"}, says="exceeds available GPUs", since=(2, 15)),
    run("virtual local rank, XPU", "--virtual-local-rank --nproc-per-node=2 probe.py", env={"ZE_AFFINITY_MASK": "0,1"}),
    run("signals named", "--signals-to-handle=SIGTERM,SIGUSR1 probe.py"),
    run("unknown signals named", "--signals-to-handle=SIGTERM,SIGNOPE probe.py", differs=("Python inside",)),
    run("store of a worker", "--nproc-per-node=2 probe.py", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
    run("monitor interval", "--monitor-interval=0.5 probe.py"),
    run("monitor interval nan", "--monitor-interval=nan probe.py"),
    run("monitor interval 0", "--monitor-interval=0 probe.py"),
    run("shutdown timeout negative", "--shutdown-timeout=-1 probe.py", says="shutdown_timeout must be non-negative"),
    run("shutdown timeout of the environment", "probe.py", env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "x"}),
    run("logs specs", "--logs-specs=nope probe.py"),
    run("logs specs of PyTorch", "--logs-specs=default probe.py"),
    run("events to null", "--event-log-handler=null probe.py"),
]

OUTPUT = [
    run("output untouched", "--nproc-per-node=2 --log-dir=logs probe.py say"),
    run("redirect 1", "--nproc-per-node=2 -r 1 --log-dir=logs probe.py say", ci=True),
    run("redirect 2", "--nproc-per-node=2 -r2 --log-dir logs probe.py say"),
    run("redirect 3", "--nproc-per-node=2 --redirects=3 --log_dir=logs probe.py say"),
    run("redirect map", "--nproc-per-node=3 -r 0:1,2:3 --log-dir=logs probe.py say"),
    run("redirect map with ranks that are not there", "--nproc-per-node=2 -r 0:1,7:3 --log-dir=logs probe.py say"),
    run("redirect map, twice", "--nproc-per-node=2 -r 0:1,0:2 --log-dir=logs probe.py say"),
    run("redirect without log folder", "-r 3 probe.py say"),
    run("redirect, bad digit", "-r 4 probe.py", says="4 does not match"),
    run("redirect, bad map", "-r 0:1, probe.py"),
    run("redirect, rank of two digits", "-r 10:1 probe.py", differs=("Long ranks",)),
    run("tee 1", "--nproc-per-node=2 -t 1 --log-dir=logs probe.py say"),
    run("tee 2", "--nproc-per-node=2 -t 2 --log-dir=logs probe.py say"),
    run("tee 3", "--nproc-per-node=2 -t 3 --log-dir=logs probe.py say", ci=True),
    run("tee map", "--nproc-per-node=2 --tee=0:1,1:2 --log-dir=logs probe.py say"),
    run("tee and redirect", "--nproc-per-node=2 -t 1 -r 2 --log-dir=logs probe.py say", ci=True),
    run("tee and redirect by maps", "--nproc-per-node=2 -t 0:3 -r 1:3 --log-dir=logs probe.py say"),
    run("tee without log folder", "-t 3 probe.py say"),
    run("tee of several lines", "-t 3 --log-dir=logs probe.py 'say=a\\nb\\n\\nc\\n'"),
    run("tee of an unfinished line", "-t 1 --log-dir=logs probe.py 'say=no end'"),
    run("tee of carriage returns", "-t 1 --log-dir=logs probe.py 'say=10%\\r50%\\r100%\\nend\\r\\n'",
        differs=("Progress bars",)),
    run("tee with a prefix template", "--nproc-per-node=2 --role=r -t 3 --log-dir=logs probe.py say",
        env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name}/${local_rank}/${rank}> "}, shuffles=True),
    run("tee with a template", "--nproc-per-node=2 --role=r -t 3 --log-dir=logs '--log-line-prefix-template=${hostname}:$rank$$ ' "
        "probe.py say", shuffles=True, since=(2, 15)),
    run("tee with a template by PET_", "-t 3 probe.py say", env={
        "PET_LOG_LINE_PREFIX_TEMPLATE": "<${rank}>", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "no"}, since=(2, 15)),
    run("tee with an empty template", "-t 3 --log-line-prefix-template= probe.py say", shuffles=True,
        env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${rank}>"}, since=(2, 15)),
    run("filter of ranks", "--nproc-per-node=3 --local-ranks-filter=0,2 --log-dir=logs probe.py say"),
    run("filter of ranks, tee", "--nproc-per-node=3 -t 3 --local-ranks-filter=1 --log-dir=logs probe.py say", ci=True),
    run("filter of ranks that are not there", "--nproc-per-node=2 --local-ranks-filter=7 probe.py say"),
    run("redirects of ranks that are not there", "--nproc-per-node=2 --log-dir=logs -r 7:3,0:1 probe.py say"),
    run("signals, none", "--signals-to-handle= probe.py", differs=("Python inside",)),
    run("filter of ranks, bad", "--local-ranks-filter=a probe.py", says="must be a comma-separated list of integers"),
    run("duplicates", "--nproc-per-node=2 -t 3 --duplicate-stdout-filters=apple,pear --duplicate-stderr-filters=plum "
        "--log-dir=logs probe.py 'say=an apple\\na plum\\n'", shuffles=True),
    run("duplicates with a comma", "-t 1 '--duplicate-stdout-filters=a,,b' --log-dir=logs probe.py 'say=a,b\\nab\\n'"),
    run("duplicates without tee", "--duplicate-stdout-filters=apple --log-dir=logs probe.py 'say=an apple\\n'",
        differs=("Filtered logs",)),
    run("log folder is a file", "--log-dir=plain probe.py", files=(("plain", "x"),)),
    run("log folder two levels deep", "-r 3 --log-dir=logs/a/b --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=job probe.py say"),
    run("log folder of an id", "-r 3 --log-dir=logs --rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=my-job probe.py say"),
    run("log folder /dev/null", "--log-dir=/dev/null probe.py say"),
    run("log folder /dev/null, redirect", "--log-dir=/dev/null -r 3 probe.py say"),
    run("log folder /dev/null, tee", "--log-dir=/dev/null -t 3 probe.py say", differs=("Without log files",)),
    run("log folder /dev/null, filter", "--log-dir=/dev/null --nproc-per-node=2 --local-ranks-filter=0 probe.py say",
        differs=("Without log files",)),
]

FAILURES = [
    run("exit 1", "probe.py exit=0:1", ci=True),
    run("exit 7 of two", "--nproc-per-node=2 probe.py exit=1:7 hold=0", ci=True),
    run("exit 255", "probe.py exit=0:255"),
    run("one fails, one ends well", "--nproc-per-node=2 probe.py slow exit=1:4"),
    run("three, one fails", "--nproc-per-node=3 probe.py exit=2:1 hold=0+1"),
    run("killed", "probe.py kill=0:SIGKILL", ci=True),
    run("segmentation fault", "--nproc-per-node=2 probe.py kill=1:SIGSEGV hold=0"),
    run("aborted", "probe.py kill=0:SIGABRT"),
    run("terminated by itself", "--nproc-per-node=2 probe.py kill=0:SIGTERM hold=1"),
    run("others catch SIGTERM", "--nproc-per-node=2 probe.py exit=0:1 trap=1:0"),
    run("others catch SIGTERM and fail", "--nproc-per-node=2 probe.py exit=0:1 trap=1:5"),
    run("deaf worker", "--nproc-per-node=2 --shutdown-timeout=2 probe.py exit=0:1 deaf=1"),
    run("failure of a module", "-m probe exit=0:2"),
    run("failure with logs", "-r 3 --log-dir=logs probe.py say exit=0:2"),
    run("failure with tee", "--nproc-per-node=2 -t 3 --log-dir=logs probe.py say exit=1:2 hold=0", ci=True),
    run("recorded error", "--nproc-per-node=2 --log-dir=logs recorded.py 1", ci=True),
    run("recorded error without log folder", "--nproc-per-node=2 recorded.py 0 MemoryError"),
    run("recorded exit", "--nproc-per-node=2 --log-dir=logs recorded.py 1 exit"),
    run("recorded, no logs", "--log-dir=/dev/null recorded.py 0"),
    run("recorded under run path", "--run-path --log-dir=logs recorded.py 0", differs=("Run path",)),
    run("python syntax error", "bad.py", files=(("bad.py", "def f(:\n"),)),
    run("python exception", "bad.py", files=(("bad.py", "raise KeyError('x')\n"),)),
]

RESTARTS = [
    run("restart once", "--max-restarts=1 probe.py first=1 exit=0:1", ci=True),
    run("restart of two", "--nproc-per-node=2 --max-restarts=3 probe.py first=2 exit=1:1 hold=0"),
    run("restarts used up", "--max-restarts=2 probe.py exit=0:6"),
    run("restart with logs", "--max-restarts=1 -r 3 --log-dir=logs probe.py say first=1 exit=0:1"),
    run("restart with tee", "--max-restarts=1 -t 3 --log-dir=logs probe.py say first=1 exit=0:1"),
    run("restart of a killed worker", "--max-restarts=1 --nproc-per-node=2 probe.py first=1 kill=1:SIGKILL hold=0"),
    run("restart on a fixed port", "--max-restarts=1 --master-port=@PORT@ probe.py first=1 exit=0:1"),
    run("restarts by environment", "probe.py first=1 exit=0:1", env={"PET_MAX_RESTARTS": "1"}),
    run("negative restarts", "--max-restarts=-1 probe.py", says="max_restarts must be >= 0"),
]

SIGNALS = [
    run("SIGTERM", "--nproc-per-node=2 probe.py hold=*", signals=("SIGTERM",), ready=2, ci=True),
    run("SIGINT", "--nproc-per-node=2 probe.py hold=*", signals=("SIGINT",), ready=2),
    run("SIGHUP", "probe.py hold=*", signals=("SIGHUP",)),
    run("SIGQUIT", "probe.py hold=*", signals=("SIGQUIT",)),
    run("SIGTERM, workers end well", "--nproc-per-node=2 probe.py trap=*:0", signals=("SIGTERM",), ready=2),
    run("SIGTERM, deaf worker", "--shutdown-timeout=1 probe.py deaf=0", signals=("SIGTERM",)),
    run("SIGUSR1 is not handled", "probe.py hold=*", signals=("SIGUSR1",),
        differs=("Nothing is left", "User signals")),
    run("SIGUSR1 is handled", "--signals-to-handle=SIGUSR1,SIGTERM probe.py hold=*", signals=("SIGUSR1",)),
    run("SIGTERM, restarts left", "--max-restarts=3 probe.py hold=*", signals=("SIGTERM",)),
    run("SIGHUP under nohup", "probe.py hold=*", signals=("SIGHUP", "SIGTERM"), nohup=True, differs=("Ignored SIGHUP",)),
    run("SIGINT is not handled", "--signals-to-handle=SIGTERM probe.py hold=*", signals=("SIGINT",)),
]

BY_ENVIRONMENT = [
    run("PET_ of a PyTorchJob", "probe.py", env={"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2", "PET_NODE_RANK": "0",
                                                "PET_MASTER_ADDR": "localhost", "PET_MASTER_PORT": "@PORT@"}, ci=True),
    run("PET_ of an elastic PyTorchJob", "probe.py", env={
        "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "localhost:@PORT@", "PET_RDZV_ID": "job", "PET_NNODES": "1:1",
        "PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "3", "PET_RDZV_CONF": "timeout=30,join_timeout=20"}),
    run("PET_STANDALONE", "--nproc-per-node=2 probe.py", env={"PET_STANDALONE": "1", "PET_RDZV_ID": "x"}),
    run("PET_STANDALONE off", "probe.py", env={"PET_STANDALONE": "0"}),
    run("PET_ flag that is no number", "probe.py", env={"PET_STANDALONE": "true"}),
    run("PET_ flag that is empty", "probe.py", env={"PET_MODULE": ""}),
    run("PET_REDIRECTS and PET_TEE", "probe.py say", env={"PET_REDIRECTS": "1", "PET_TEE": "2", "PET_LOG_DIR": "logs"}),
    run("PET_MODULE", "probe x", env={"PET_MODULE": "1"}),
    run("PET_NO_PYTHON", "python3 probe.py", env={"PET_NO_PYTHON": "1"}),
    run("PET_NNODES empty", "probe.py", env={"PET_NNODES": ""}),
    run("PET_MASTER_PORT empty", "probe.py", env={"PET_MASTER_PORT": ""}),
    run("PET_START_METHOD of no choice", "probe.py", env={"PET_START_METHOD": "nope"}),
    run("PET_ beaten by the command line", "--nproc-per-node=1 --role=b probe.py", env={"PET_NPROC_PER_NODE": "3", "PET_ROLE": "a"}),
    run("PET_NUMA_BINDING is none", "probe.py", env={"PET_NUMA_BINDING": "node"}),
    run("PET_ of filters", "-t1 --log-dir=logs probe.py 'say=an apple\\n'", env={"PET_DUPLICATE_STDOUT_FILTERS": "apple,pear"}),
]

# White space that a YAML block, a file with CRLF ends or a quoted variable leaves around a value; what goes with it.
C10D = "--rdzv-backend=c10d --rdzv-endpoint=localhost:0"
TEXTS = {
    "nnodes": ("1", C10D), "nproc-per-node": ("1", ""),
    "rdzv-endpoint": ("127.0.0.1:@PORT@", ""), "rdzv-conf": ("join_timeout=20", C10D),
    "node-rank": ("0", "--master-port=@PORT@"), "master-addr": ("127.0.0.1", "--master-port=@PORT@"),
    "master-port": ("@PORT@", ""), "max-restarts": ("0", ""), "monitor-interval": ("0.1", ""), "shutdown-timeout": ("5", ""),
    "start-method": ("spawn", ""), "role": ("r", ""), "redirects": ("3", "--log-dir=logs"), "tee": ("0:3", "--log-dir=logs"),
    "local-ranks-filter": ("0", "--nproc-per-node=2"), "event-log-handler": ("null", ""), "signals-to-handle": ("SIGTERM", ""),
    "numa-binding": ("node", ""),  # not local-addr: torchrun waits for a host of any name
}
ENDS = {"blank": ("", " "), "carriage return": ("", "\r"), "tab": ("\t", ""), "newline": ("", "\n"), "separator": ("", "\x1c")}
ENDLESS = ("master-addr", "newline")  # torchrun takes it, and waits for a host of that name until its timeout
SPACED = [Row(f"{name} with {end}", [*shlex.split(rest), f"--{name}={before}{value}{after}", "probe.py", "say"],
              ci=(name, end) == ("rdzv-endpoint", "carriage return"))
          for name, (value, rest) in TEXTS.items() for end, (before, after) in ENDS.items() if (name, end) != ENDLESS]
WRONG_TEXTS = [
    run("master-addr empty", "--master-addr= --master-port=@PORT@ probe.py", says="must be a dot-separated list of labels"),
    run("master-addr of two words", "--master-addr='a b' --master-port=@PORT@ probe.py"),
    run("master-addr in brackets", "--master-addr=[::1] --master-port=@PORT@ probe.py"),
    run("master-addr as an address of IPv6", "--master-addr=::1 --master-port=@PORT@ probe.py"),
    run("master-addr as a URL", "--master-addr=tcp://127.0.0.1 --master-port=@PORT@ probe.py"),
    run("master-addr of several nodes empty", "--nnodes=2 --node-rank=1 --master-addr= --master-port=@PORT@ probe.py"),
    run("master-port too large", "--master-port=65536 probe.py"),
    run("master-port negative", "--master-port=-1 probe.py"),
    run("endpoint of blanks", "--rdzv-endpoint=' ' probe.py"),
    run("endpoint of blanks, c10d", "--rdzv-backend=c10d --rdzv-endpoint=' ' probe.py"),
    run("backend empty", "--rdzv-backend= --rdzv-endpoint=localhost:0 probe.py"),
    run("local-addr empty", f"{C10D} --local-addr= probe.py"),
    run("role empty", "--role= -t3 --log-dir=logs probe.py say"),
    run("log-dir empty", "--log-dir= -r 3 probe.py say"),
    run("log-dir with a carriage return", "'--log-dir=logs/a\r' -r 3 probe.py say"),
    run("redirects empty", "--redirects= probe.py"),
    run("nnodes with blanks", f"{C10D} --nnodes=' 1 : 1 ' probe.py"),
    run("nnodes of three", "--nnodes=1:1:1 probe.py"),
    run("numa-binding empty", "--numa-binding= probe.py"),
]

ALL_ROWS = [*SIZE, *RENDEZVOUS, *PROGRAM, *OUTPUT, *FAILURES, *RESTARTS, *SIGNALS, *BY_ENVIRONMENT, *SPACED, *WRONG_TEXTS]

# What the torchrun of this Python can be compared in.
TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
ROWS = [row for row in ALL_ROWS if row.since <= TORCH]
