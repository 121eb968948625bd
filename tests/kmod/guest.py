#!/usr/bin/python3
# guest.py - builds postern.ko for Debian's kernels, and runs its tests in QEMU guests (software emulation: no KVM is asked for).
# SPDX-License-Identifier: Apache-2.0
#
#   guest.py --build DIR [--kernels 6.1,6.12] [--only build|test] [--filter NAME] [--programs COMMAND]
#
# Kernels, headers and what the headers want come from apt, by name, and are unpacked into DIR/kmod; nothing is installed. QEMU is
# the host's (package qemu-system-x86). The guest has an initramfs and no disk: busybox, the test program with its libraries, the
# module. With --programs it then has the host's root, over 9p, below a memory file system that takes what is written; there it runs
# that command, which tests programs of this build at level 2; they are copied first, to $BUILD. It prints to its serial line, and ends with "N passed, N failed". A line of the kernel's that tells of a defect
# (BUG, WARNING, Oops, a lock's report) fails the run, whatever the tests say; freed memory is poisoned, and slabs have red zones.

import argparse
import glob
import lzma
import os
import re
import select
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# By the version that is meant, the metapackages that name the present one.
META = {"6.1": ("linux-image-amd64", "linux-headers-amd64"), "6.12": ("linux-image-6.12-amd64", "linux-headers-6.12-amd64")}
DEFECTS = re.compile(r"\b(BUG[: ]|WARNING: |Oops|general protection|possible (recursive|circular)|INFO: task .* blocked|[Kk]ernel panic"
                     r"|refcount_t:|list_(add|del) corruption|unable to handle)")
# Of the environment: how long the corrupter and the killer go on (a few seconds), and how long a guest may take.
LONG_SECONDS = int(os.environ.get("KMOD_SECONDS", "0"))
GUEST_SECONDS = int(os.environ.get("GUEST_SECONDS", str(1200 + 4 * LONG_SECONDS)))


def run(*command, **kwargs):
    return subprocess.run(command, check=True, text=True, **kwargs)


def depends(package):
    out = run("apt-cache", "depends", "--no-recommends", "--no-suggests", package, stdout=subprocess.PIPE).stdout
    return re.findall(r"^\s*\|?Depends: (\S+)$", out, re.M)


def packages_of(version):
    """Names of the kernel's packages: (release, [package])."""
    image = next(p for p in depends(META[version][0]) if p.startswith("linux-image-"))
    headers = next(p for p in depends(META[version][1]) if p.startswith("linux-headers-"))
    rest = [p for p in depends(headers) if p.startswith(("linux-headers-", "linux-kbuild-"))]
    return image[len("linux-image-"):], [image, headers, *rest, "busybox-static"]


def unpack(directory, version):
    """The kernel's packages in DIRECTORY/root-VERSION; its release and that folder."""
    root = os.path.join(directory, "root-" + version)
    release, packages = packages_of(version)
    done = os.path.join(root, "done-" + release)
    if os.path.exists(done):
        return release, root
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(os.path.join(root, "debs"))
    print(f"== {version}: {' '.join(packages)}", flush=True)
    run("apt-get", "download", "-qq", *packages, cwd=os.path.join(root, "debs"), stderr=subprocess.DEVNULL)
    for deb in glob.glob(os.path.join(root, "debs", "*.deb")):
        run("dpkg", "-x", deb, root)
    shutil.rmtree(os.path.join(root, "debs"))
    # The headers' makefile includes the common one by where it would have been installed.
    makefile = os.path.join(root, "usr/src/linux-headers-" + release, "Makefile")
    with open(makefile, encoding="utf-8") as f:
        text = f.read()
    with open(makefile, "w", encoding="utf-8") as f:
        f.write(text.replace("include /usr/src", f"include {root}/usr/src"))
    open(done, "w").close()
    return release, root


def build_module(directory, version, checker):
    """The module, built outside the sources. Any warning is an error."""
    release, root = unpack(directory, version)
    tree = os.path.join(directory, "module-" + version)
    os.makedirs(tree, exist_ok=True)
    for source, target in (("kmod", "kmod"), ("lib/abi", "lib/abi")):
        run("cp", "-ru", "--no-preserve=ownership", os.path.join(ROOT, source) + "/.", os.path.join(tree, target)) \
            if os.path.isdir(os.path.join(tree, target)) else shutil.copytree(os.path.join(ROOT, source), os.path.join(tree, target))
    module = os.path.join(tree, "kmod")
    command = ["make", "-s", "-j" + os.environ.get("JOBS", "2"), "-C", os.path.join(root, "usr/src/linux-headers-" + release),
               "M=" + module, "W=1", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]
    if checker:
        command += ["C=2", "CF=-D__CHECK_ENDIAN__ -Wsparse-error"]
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "CFLAGS", "CC")}
    out = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env)
    said = [line for line in out.stdout.splitlines() if line.strip() and "Skipping BTF" not in line]
    print("\n".join(said), end="\n" if said else "")
    if out.returncode != 0 or any("warning:" in line or "error:" in line for line in said):
        sys.exit(f"guest.py: the module does not build cleanly for {release}")
    print(f"== {release}: built{', sparse is silent' if checker else ''}", flush=True)
    return release, root, os.path.join(module, "postern.ko")


def libraries(program):
    out = run("ldd", program, stdout=subprocess.PIPE).stdout
    return re.findall(r"(/\S+) \(0x", out)


INIT = """#!/bin/busybox sh
# init - of the guest.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
mkdir -p /tmp /dev/shm /run
mount -t tmpfs none /tmp
mount -t tmpfs none /dev/shm
ip link set lo up
ulimit -n 65536
echo 8 > /proc/sys/kernel/printk
echo "== $(uname -r)"
%s
echo "== end"
poweroff -f
"""

PROGRAMS = """for module in /modules/*; do insmod $module; done
insmod /postern.ko
mkdir -p /host /over /all
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=524288,cache=loose host /host && mount -t tmpfs none /over && mkdir /over/up /over/work &&
  mount -t overlay -o lowerdir=/host,upperdir=/over/up,workdir=/over/work none /all || echo "0 passed, 1 failed"
for folder in proc sys dev; do mount -o bind /$folder /all/$folder; done
mount -t tmpfs none /all/dev/shm
mount -t tmpfs none /all/run
cp /programs.sh /all/run
mkdir -p /all/dev/pts && mount -t devpts none /all/dev/pts
chroot /all /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LANG=C.UTF-8 BUILD=%s sh -c "cd %s && . /run/programs.sh"
rmmod postern || echo "0 passed, 1 failed"
"""


def depends_of(modules, name):
    """The modules that `name` wants, in the order in which they are to be loaded, it itself last."""
    path = next((p for p in modules if re.sub(r"\.ko(\.xz)?$", "", os.path.basename(p)).replace("-", "_") == name), None)
    if path is None:
        return []  # built into the kernel
    with open(path, "rb") as f:
        data = f.read()
    data = lzma.decompress(data) if path.endswith(".xz") else data
    wants = re.search(rb"\0depends=([^\0]*)\0", data).group(1).decode()
    order = []
    for one in filter(None, wants.split(",")):
        order += [m for m in depends_of(modules, one.replace("-", "_")) if m not in order]
    return order + [(name, data)]


def copy_modules(tree, root, release, names):
    modules = glob.glob(os.path.join(root, "lib/modules", release, "kernel/**/*.ko*"), recursive=True)
    os.makedirs(os.path.join(tree, "modules"))
    order = []
    for name in names:
        order += [m for m in depends_of(modules, name) if m not in order]
    for i, (name, data) in enumerate(order):
        with open(os.path.join(tree, "modules", f"{i:02}-{name}.ko"), "wb") as f:
            f.write(data)


def copy_programs(build, to):
    """What is built, for the guest: it must not change while that looks at it."""
    for top, dirs, names in os.walk(build):
        dirs[:] = [d for d in dirs if not d.endswith(".p") and d not in ("kmod-guest", "meson-private", "meson-logs", "meson-info")]
        for name in names:
            path = os.path.join(top, name)
            target = os.path.join(to, os.path.relpath(path, build))
            if os.access(path, os.X_OK) and not (os.path.exists(target) and os.path.getmtime(target) == os.path.getmtime(path)):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy2(path, target + ".new")
                os.replace(target + ".new", target)


def initramfs(directory, version, release, root, module, program, arguments, programs):
    tree = os.path.join(directory, "initramfs-" + version)
    shutil.rmtree(tree, ignore_errors=True)
    for folder in ("bin", "proc", "sys", "dev", "etc"):
        os.makedirs(os.path.join(tree, folder))
    shutil.copy(os.path.join(root, "bin/busybox"), os.path.join(tree, "bin/busybox"))
    run("strip", "-g", module, "-o", os.path.join(tree, "postern.ko"))
    run("strip", program, "-o", os.path.join(tree, "kmod_test"))
    for library in libraries(program):
        target = tree + os.path.realpath(os.path.dirname(library))
        os.makedirs(target, exist_ok=True)
        shutil.copy(library, target)
        if not os.path.exists(tree + library):
            os.makedirs(tree + os.path.dirname(library), exist_ok=True)
            shutil.copy(library, tree + library)
    if programs:
        with open(os.path.join(tree, "programs.sh"), "w", encoding="utf-8") as f:
            f.write(programs + "\n")
        copy_modules(tree, root, release, ("virtio_pci", "9pnet_virtio", "9p", "overlay", "tcp_diag", "unix_diag"))
    work = ([] if arguments == "-" else [f"/kmod_test /postern.ko {arguments}"]) + ([PROGRAMS % (os.path.join(directory, "programs"), ROOT)] if programs else [])
    with open(os.path.join(tree, "init"), "w", encoding="utf-8") as f:
        f.write(INIT % "\n".join(work))
    os.chmod(os.path.join(tree, "init"), 0o755)
    image = os.path.join(directory, f"initramfs-{version}.cpio.gz")
    run("sh", "-c", f"find . | {root}/bin/busybox cpio -o -H newc 2>/dev/null | gzip -1 > {image}", cwd=tree)
    return image


def boot(version, release, root, image):
    """Runs the guest. (passed, failed), or None when it did not come to its end."""
    command = ["qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "2", "-m", "1536", "-nographic", "-no-reboot",
               "-nodefaults", "-serial", "stdio", "-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
               "-device", "virtio-9p-pci,fsdev=host,mount_tag=host", "-kernel", os.path.join(root, "boot/vmlinuz-" + release), "-initrd", image,
               "-append", "console=ttyS0 no_timer_check panic=-1 loglevel=4 quiet mitigations=off random.trust_cpu=on oops=panic slub_debug=FZP page_poison=1 nosoftlockup rcupdate.rcu_cpu_stall_suppress=1 "
               + (f"KMOD_SECONDS={LONG_SECONDS}" if LONG_SECONDS else "")]
    began, result, defects = time.monotonic(), None, []
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as guest:
        try:
            pending = ""
            while True:
                ready, _, _ = select.select([guest.stdout], [], [], max(0, GUEST_SECONDS - (time.monotonic() - began)))
                piece = os.read(guest.stdout.fileno(), 65536) if ready else b""
                if not ready:
                    print("guest.py: the guest takes too long")
                if not piece:
                    break
                pending += piece.decode(errors="replace")
                *lines, pending = pending.split("\n")
                for line in lines:
                    line = line.rstrip("\r")
                    match = re.fullmatch(r"(\d+) passed, (\d+) failed", line)
                    if match:
                        before = result or (0, 0)
                        result = before[0] + int(match.group(1)), before[1] + int(match.group(2))
                    else:
                        print(f"{version}| {line}", flush=True)
                    if DEFECTS.search(line):
                        defects.append(line)
        finally:
            if guest.poll() is None:
                guest.kill()
    print(f"== {release}: {time.monotonic() - began:.0f} s", flush=True)
    for line in defects:
        print(f"guest.py: the kernel says: {line}")
    if result is None:
        return None
    return result[0], result[1] + len(defects)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--kernels", default="6.1,6.12")
    parser.add_argument("--only", choices=("build", "test"))
    parser.add_argument("--filter", default="", help="names of tests of kmod_test, or parts of them; '-': none")
    parser.add_argument("--programs", default="", help="a command to be run in the guest, in the sources' root")
    options = parser.parse_args()
    directory = os.path.join(os.path.abspath(options.build), "kmod-guest")
    os.makedirs(directory, exist_ok=True)
    if options.programs:
        copy_programs(os.path.abspath(options.build), os.path.join(directory, "programs"))
    passed = failed = 0
    checker = shutil.which("sparse") is not None
    for version in options.kernels.split(","):
        release, root, module = build_module(directory, version, checker)
        passed += 1
        if options.only == "build":
            continue
        program = os.path.join(os.path.abspath(options.build), "tests/kmod/kmod_test")
        image = initramfs(directory, version, release, root, module, program, options.filter, options.programs)
        result = boot(version, release, root, image)
        if result is None:
            print(f"guest.py: the guest of {release} did not come to its end")
            result = 0, 1
        passed += result[0]
        failed += result[1]
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
