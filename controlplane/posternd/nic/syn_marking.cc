// syn_marking.cc - finds, loads, attaches and pins the programs of the SYN option.
// SPDX-License-Identifier: Apache-2.0
#include "syn_marking.h"

#include <cerrno>

#include "../kit/log.h"

#ifdef POSTERN_BPF

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/magic.h>
#include <syn_option.skel.h>  // generated
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/vfs.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace postern::daemon {
namespace {

struct Program {
  const char* name;  // as the kernel shows it; the digit is the version of the whole set
  bpf_attach_type type;
};
constexpr Program kProgram[SynOption::kPrograms] = {
    {"pstn_syn1_ops", BPF_CGROUP_SOCK_OPS},
    {"pstn_syn1_set", BPF_CGROUP_SETSOCKOPT},
    {"pstn_syn1_get", BPF_CGROUP_GETSOCKOPT},
};

constexpr int kLockTries = 200;
constexpr useconds_t kLockPauseUsec = 50000;
constexpr size_t kDepthMax = 64;  // of a cgroup below the root

struct FreeSynSkeleton {
  void operator()(syn_option_bpf* skeleton) const { syn_option_bpf__destroy(skeleton); }
};
using Skeleton = std::unique_ptr<syn_option_bpf, FreeSynSkeleton>;

// libbpf's own messages, the verifier's log among them, are for a user that asks for details.
int PrintLibbpf(libbpf_print_level level, const char* format, va_list args) {
  if (level == LIBBPF_DEBUG) return 0;
  char text[480];
  vsnprintf(text, sizeof(text), format, args);
  text[strcspn(text, "\n")] = '\0';
  Note("%s", text);
  return 0;
}

// ---- the cgroup --------------------------------------------------------------------------------

bool IsCgroup2(int fd) {
  struct statfs fs {};
  return fstatfs(fd, &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC;
}

// The kernel's numbers of this cgroup and of those above it, as far as we can see.
std::vector<uint64_t> WithAncestors(int cgroup) {
  std::vector<uint64_t> ids;
  UniqueFd at(fcntl(cgroup, F_DUPFD_CLOEXEC, 0));
  while (at.ok() && IsCgroup2(at.get()) && ids.size() < kDepthMax) {
    struct stat st {};
    if (fstat(at.get(), &st) != 0 || (!ids.empty() && ids.back() == st.st_ino)) break;
    ids.push_back(st.st_ino);
    at = UniqueFd(openat(at.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  return ids;
}

// So that of two that start at once only one attaches. A process that holds it for long is not one
// of ours, and not waited for.
void LockCgroup(int cgroup) {
  for (int i = 0; i < kLockTries && flock(cgroup, LOCK_EX | LOCK_NB) != 0; ++i) {
    usleep(kLockPauseUsec);
  }
}

// ---- links that are there already --------------------------------------------------------------

bool LinkInfo(int link, bpf_link_info& info) {
  info = {};
  __u32 size = sizeof(info);
  return bpf_obj_get_info_by_fd(link, &info, &size) == 0 && info.type == BPF_LINK_TYPE_CGROUP;
}

bool Complete(const SynOption::Links& links) {
  for (const UniqueFd& link : links) {
    if (!link.ok()) return false;
  }
  return true;
}

std::string PinPath(const std::string& pin_dir, const Program& program) {
  return pin_dir + "/" + program.name;
}

SynOption::Links FromPins(const std::string& pin_dir, uint64_t cgroup) {
  SynOption::Links links;
  for (size_t i = 0; i < links.size(); ++i) {
    UniqueFd link(bpf_obj_get(PinPath(pin_dir, kProgram[i]).c_str()));
    bpf_link_info info;
    if (link.ok() && LinkInfo(link.get(), info) && info.cgroup.cgroup_id == cgroup &&
        info.cgroup.attach_type == kProgram[i].type)
      links[i] = std::move(link);
  }
  return links;
}

// The programs of one load share its BTF, and no other program has it; with it their maps are the
// same.
uint32_t BtfIfNamed(uint32_t program, const char* name) {
  const UniqueFd fd(bpf_prog_get_fd_by_id(program));
  bpf_prog_info info{};
  __u32 size = sizeof(info);
  if (!fd.ok() || bpf_obj_get_info_by_fd(fd.get(), &info, &size) != 0) return 0;
  return strcmp(info.name, name) == 0 ? info.btf_id : 0;
}

bool Contains(const std::vector<uint64_t>& cgroups, uint64_t id) {
  return std::find(cgroups.begin(), cgroups.end(), id) != cgroups.end();
}

SynOption::Links FromKernel(const std::vector<uint64_t>& cgroups) {
  std::map<uint32_t, SynOption::Links> found;  // by BTF
  for (uint32_t id = 0; bpf_link_get_next_id(id, &id) == 0;) {
    UniqueFd link(bpf_link_get_fd_by_id(id));
    bpf_link_info info;
    if (!link.ok() || !LinkInfo(link.get(), info) || !Contains(cgroups, info.cgroup.cgroup_id))
      continue;
    size_t which = 0;
    while (which < SynOption::kPrograms && kProgram[which].type != info.cgroup.attach_type) ++which;
    if (which == SynOption::kPrograms) continue;
    const uint32_t btf = BtfIfNamed(info.prog_id, kProgram[which].name);
    if (btf != 0) found[btf][which] = std::move(link);
  }
  for (auto& [btf, links] : found) {
    if (Complete(links)) return std::move(links);
  }
  return {};
}

// ---- a new set ---------------------------------------------------------------------------------

// 5.10 is 5010. A kernel that does not tell is a new one.
int KernelVersion() {
  utsname name{};
  int major = 0, minor = 0;
  const bool known = uname(&name) == 0 && sscanf(name.release, "%d.%d", &major, &minor) == 2;
  return known ? major * 1000 + minor : INT_MAX;
}

std::string MissingCapabilities() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  std::string missing;
  if (syscall(SYS_capget, &header, data) != 0) return missing;
  const auto has = [&data](unsigned cap) {
    return (data[cap / 32].effective >> (cap % 32) & 1) != 0;
  };
  if (!has(CAP_NET_ADMIN)) missing += " CAP_NET_ADMIN";
  if (!has(CAP_BPF) && !has(CAP_SYS_ADMIN)) missing += " CAP_BPF";
  if (!has(CAP_PERFMON) && !has(CAP_SYS_ADMIN)) missing += " CAP_PERFMON";
  // Programs counted as locked memory then, and the limit is small.
  if (!has(CAP_SYS_RESOURCE) && KernelVersion() < 5011) missing += " CAP_SYS_RESOURCE";
  return missing;
}

std::string WhyNotLoaded() {
  if (KernelVersion() < 5010) return "the kernel is older than 5.10";
  if (const std::string missing = MissingCapabilities(); !missing.empty())
    return "posternd lacks" + missing;
  if (access("/sys/kernel/btf/vmlinux", R_OK) != 0)
    return "the kernel has no BTF (/sys/kernel/btf/vmlinux)";
  return "the kernel refuses it (locked down? --verbose shows more)";
}

Skeleton OpenAndLoad(uint8_t can_set, int& error) {
  Skeleton skeleton(syn_option_bpf__open());
  if (skeleton == nullptr) {
    error = -errno;
    return nullptr;
  }
  skeleton->rodata->can_set = can_set;
  error = syn_option_bpf__load(skeleton.get());
  if (error != 0) skeleton.reset();
  return skeleton;
}

// Before 5.15 a program for setsockopt() can't set an option itself, and one that would isn't
// loaded.
Skeleton Load(int& error) {
  Skeleton skeleton = OpenAndLoad(1, error);
  if (skeleton != nullptr || !MissingCapabilities().empty()) return skeleton;
  skeleton = OpenAndLoad(0, error);
  if (skeleton != nullptr)
    Warn("SYN option: on this kernel a listener has to be marked before listen(), for good");
  return skeleton;
}

int LoadAndAttach(int cgroup, SynOption::Links& links) {
  int error = 0;
  const Skeleton skeleton = Load(error);
  if (skeleton == nullptr) {
    Warn("SYN option: not loaded, %s: %s", WhyNotLoaded().c_str(), strerror(-error));
    return error;
  }
  const bpf_program* programs[SynOption::kPrograms] = {
      skeleton->progs.pstn_syn1_ops, skeleton->progs.pstn_syn1_set, skeleton->progs.pstn_syn1_get};
  for (size_t i = 0; i < links.size(); ++i) {
    bpf_link* link = bpf_program__attach_cgroup(programs[i], cgroup);
    if (link == nullptr) {
      error = -errno;
      Warn(
          "SYN option: %s can't be attached, unless the cgroup is gone one above it is taken by a "
          "program that shares with none: %s",
          kProgram[i].name, strerror(-error));
      return error;
    }
    links[i] = UniqueFd(fcntl(bpf_link__fd(link), F_DUPFD_CLOEXEC, 0));
    bpf_link__destroy(link);
    if (!links[i].ok()) return -errno;
  }
  return 0;
}

// What is there under these names is of another cgroup, or incomplete.
int Pin(const SynOption::Links& links, const std::string& pin_dir) {
  if (mkdir(pin_dir.c_str(), 0700) != 0 && errno != EEXIST) return -errno;
  for (size_t i = 0; i < links.size(); ++i) {
    const std::string path = PinPath(pin_dir, kProgram[i]);
    if (unlink(path.c_str()) != 0 && errno != ENOENT) return -errno;
    if (bpf_obj_pin(links[i].get(), path.c_str()) != 0) return -errno;
  }
  return 0;
}

}  // namespace

bool SynOption::Built() { return true; }

int SynOption::Attach(const std::string& cgroup, const std::string& pin_dir) {
  libbpf_set_print(PrintLibbpf);
  const UniqueFd directory(open(cgroup.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.ok()) {
    const int error = errno;
    Warn("SYN option: %s: %s", cgroup.c_str(), strerror(error));
    return -error;
  }
  if (!IsCgroup2(directory.get())) {
    Warn("SYN option: %s is not a directory of a cgroup2 mount", cgroup.c_str());
    return -EINVAL;
  }
  LockCgroup(directory.get());
  const std::vector<uint64_t> ids = WithAncestors(directory.get());
  Links links;
  if (!pin_dir.empty() && !ids.empty()) links = FromPins(pin_dir, ids.front());
  const bool pinned = Complete(links);
  if (!pinned) links = FromKernel(ids);
  shared_ = Complete(links);
  if (!shared_) {
    links = {};
    if (const int error = LoadAndAttach(directory.get(), links); error != 0) return error;
  }
  if (!pin_dir.empty() && !pinned) {
    if (const int error = Pin(links, pin_dir); error != 0) {
      Warn("SYN option: can't be pinned in %s (a directory of a bpffs?): %s", pin_dir.c_str(),
           strerror(-error));
      return error;
    }
  }
  links_ = std::move(links);
  Note("SYN option: %s to %s", shared_ ? "was attached" : "attached", cgroup.c_str());
  return 0;
}

}  // namespace postern::daemon

#else  // POSTERN_BPF

namespace postern::daemon {

bool SynOption::Built() { return false; }

int SynOption::Attach(const std::string&, const std::string&) {
  Warn("SYN option: this posternd was built without clang, bpftool or libbpf, and has none");
  return -ENOSYS;
}

}  // namespace postern::daemon

#endif  // POSTERN_BPF
