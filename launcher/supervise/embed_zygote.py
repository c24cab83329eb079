"""Makes a C source of the zygote: a zip file, stored without compression, that the interpreter imports it from."""

import io
import sys
import zipfile

SITECUSTOMIZE = b"""\
import os
import sys
__loader__ = __spec__ = None
try:
    import crun_zygote
    module = crun_zygote.main()
    del sys.modules["crun_zygote"]
except BaseException:
    os._exit(70)
if module is None:
    raise ImportError("there is no sitecustomize", name="sitecustomize")
sys.modules["sitecustomize"] = module
"""


def main(source, target):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        with open(source, "rb") as file:
            for name, text in ("sitecustomize.py", SITECUSTOMIZE), ("crun_zygote.py", file.read()):
                archive.writestr(zipfile.ZipInfo(name), text)
    octets = data.getvalue()
    with open(target, "w", encoding="ascii") as file:
        file.write('#include "launcher/supervise/zygote_source.h"\n\nconst unsigned char zygote_source[] = {\n')
        for i in range(0, len(octets), 24):
            file.write("".join("%d," % octet for octet in octets[i:i + 24]) + "\n")
        file.write("};\nconst size_t zygote_source_size = sizeof(zygote_source);\n")


main(*sys.argv[1:])
