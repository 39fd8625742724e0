# ruff: noqa: E501 (a row is a row: messages stand as they are)
"""What does Python itself say when a script fails?"""

from __future__ import annotations

from holdfast.diagnosis.tables import CAUSE, SYMPTOM, Row

PY = "https://docs.python.org/3/library/exceptions.html"
USER, DATA, FRAMEWORK, STORAGE, HOST = "user-code", "data", "framework", "storage", "oom-host"
FIX = "fix the script at the line that its traceback names"

RULES: tuple[Row, ...] = (
    ("python-cannot-open-script", USER, CAUSE, 97, "can't open file", r"can't open file '(?P<what>[^']+)': \[Errno 2\]",
     "the script is not there ({what})", "check its path, and that the file system is mounted on that node",
     "https://docs.python.org/3/using/cmdline.html", "/usr/bin/python3: can't open file '/workspace/trian.py': [Errno 2] No such file or directory"),
    ("python-usage", USER, CAUSE, 95, ": error: ", r"^(?:\S+\.py|torchrun|deepspeed|accelerate|composer): error: (?:unrecognized arguments|the following arguments are required|argument )",
     "the script does not accept its arguments", "fix the command line", "https://docs.python.org/3/library/argparse.html",
     "train.py: error: unrecognized arguments: --learning-rte 0.1"),
    ("numpy-array-memory", HOST, CAUSE, 92, "_ArrayMemoryError", r"_ArrayMemoryError: Unable to allocate",
     "numpy could not get memory from the host", "load less at once, or give the job more memory",
     "https://numpy.org/doc/stable/user/troubleshooting-importerror.html",
     "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 119. GiB for an array with shape (126000, 126000) and data type float64"),
    ("python-ancdata", USER, CAUSE, 92, "items of ancdata", r"received 0 items of ancdata", "it has too many files open",
     "raise `ulimit -n`, or use torch.multiprocessing.set_sharing_strategy('file_system')", "https://github.com/pytorch/pytorch/issues/973",
     "RuntimeError: received 0 items of ancdata"),
    ("python-segfault", FRAMEWORK, SYMPTOM, 60, "Segmentation fault", r"^(?:Fatal Python error: )?Segmentation fault", "native code has crashed",
     "see its stack above; look for libraries whose versions do not fit", "https://docs.python.org/3/library/faulthandler.html",
     "Fatal Python error: Segmentation fault"),
    ("python-fatal", FRAMEWORK, SYMPTOM, 60, "Fatal Python error: ", r"^Fatal Python error: (?!Segmentation fault|Aborted)", "the interpreter gave up",
     "see its stack above", "https://docs.python.org/3/library/faulthandler.html", "Fatal Python error: Bus error"),
    ("python-file-timeout", STORAGE, CAUSE, 88, "[Errno 110] Connection timed out: '", r"\[Errno 110\] Connection timed out: '(?P<what>/[^']*)'", "a file server did not answer in time ({what})", "look at the file server, and the network to it",
     "https://man7.org/linux/man-pages/man3/errno.3.html", "TimeoutError: [Errno 110] Connection timed out: '/mnt/nfs/data/shard-1.bin'"),
    ("command-not-found", "environment", CAUSE, 90, ": command not found|: not found", r"^(?:\S+: )?(?:line )?(?:\d+: )?(?P<what>torchrun|python[\d.]*|deepspeed|accelerate|composer|mpirun|mpiexec|horovodrun|srun|ray|singularity|apptainer|docker|enroot): (?:command )?not found$",
     "the shell does not find {what}", "install it, load its module, or name it with its path", "https://www.gnu.org/software/bash/manual/html_node/Exit-Status.html", "train.sh: line 4: torchrun: command not found"),
    ("click-usage", USER, CAUSE, 92, "Error: No such option|Error: Missing option|Error: Missing argument|Error: Invalid value for|Error: Got unexpected extra argument", r"^Error: (?:No such option|Missing (?:option|argument)|Invalid value for|Got unexpected extra argument)",
     "the script does not accept its arguments", "fix the command line", "https://github.com/pallets/click: src/click/exceptions.py", "Error: No such option: --lrr Did you mean --lr?"),
    ("nan-raised", DATA, CAUSE, 82, "FloatingPointError: ", r"^FloatingPointError: .*(?i:\bnan\b|\binf|loss scale)", "the loss or its gradients are no number any more", "go back to an earlier checkpoint, lower the learning rate, skip those samples", "https://github.com/facebookresearch/fairseq: fairseq/trainer.py",
     "FloatingPointError: gradients are Nan/Inf"),
    ("serde-enum", FRAMEWORK, CAUSE, 86, "did not match any variant of untagged enum", r"did not match any variant of untagged enum", "a file was written by another version of the library that reads it", "update that library: tokenizers, most often", "https://github.com/huggingface/tokenizers: bindings/python/src/tokenizer.rs",
     "Exception: data did not match any variant of untagged enum ModelWrapper at line 40 column 3"),
    ("license-denied", "environment", CAUSE, 86, "Licensed number of users already reached|FlexNet Licensing error|License checkout failed|FLEXlm error", r"Licensed number of users already reached|FlexNet Licensing error|License checkout failed|FLEXlm error", "a program was given no license", "wait for one, or see its license server", "https://docs.flexera.com/fnmea/2021r1/ConceptGuide/Content/helplibrary/License_Denials.htm",
     "FlexNet Licensing error:-4,132"),
    ("tls-certificate", DATA, CAUSE, 84, "CERTIFICATE_VERIFY_FAILED|server certificate verification failed", r"^(?!.*(?:thrown while requesting|Retrying )).*(?:CERTIFICATE_VERIFY_FAILED|server certificate verification failed)", "a server's certificate is not trusted, most often that of a proxy, so that nothing could be fetched from it", "name its authority by SSL_CERT_FILE and REQUESTS_CA_BUNDLE on every node, or fetch it beforehand and work offline", "https://docs.python.org/3/library/ssl.html",
     "urllib.error.URLError: <urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate (_ssl.c:1007)>"),
    ("fetch-failed", DATA, CAUSE, 80, "ConnectionPool(host=", r"^(?:requests|urllib3)\.exceptions\.\w+: .*ConnectionPool\(host=\\?'(?P<what>[\w.-]*(?:huggingface\.co|hf\.co|hf-mirror\.com|modelscope\.cn|amazonaws\.com|googleapis\.com|windows\.net|pytorch\.org|github\.com|githubusercontent\.com))\b", "nothing could be fetched from {what}", "see the node's proxy, DNS and way out, or fetch it once beforehand and work offline", "https://requests.readthedocs.io/en/latest/api/#exceptions",
     "requests.exceptions.ProxyError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /acme/base (Caused by ProxyError('Cannot connect to proxy.'))\"))"),
    ("compile-cache", FRAMEWORK, CAUSE, 84, "/torchinductor_|.triton/cache/", r"\[Errno (?:2|16|17|39)\] .*(?:/torchinductor_\w+/|\.triton/cache/)", "the cache of compiled kernels changed under its hands, most often by another rank", "give each rank, or node, a cache of its own (TORCHINDUCTOR_CACHE_DIR, TRITON_CACHE_DIR), on a local disk", "https://github.com/triton-lang/triton: python/triton/runtime/cache.py",
     "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/torchinductor_me/triton/4/5eba/triton_.cubin.tmp.pid_93828_100098'"),
)
ACTIONS = {"license-denied": "restart"}  # it is free again when another program ends
