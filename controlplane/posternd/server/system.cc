// system.cc - see system.h.
// SPDX-License-Identifier: Apache-2.0
#include "system.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <mntent.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "../broker/broker.h"
#include "../broker/policy.h"
#include "../guard/rights.h"
#include "../kit/event.h"
#include "../kit/log.h"
#include "../line/bells.h"
#include "../nic/syn_marking.h"
#include "../nic/vis.h"
#include "state/area.h"

namespace postern::daemon {
namespace {

constexpr const char* kBells = "bells";
constexpr const char* kBpfDir = "/sys/fs/bpf";

struct EndMounts {
  void operator()(FILE* mounts) const { endmntent(mounts); }
};

// Where the host's cgroups are, or empty.
std::string CgroupRoot() {
  const std::unique_ptr<FILE, EndMounts> mounts(setmntent("/proc/self/mounts", "re"));
  mntent entry{};
  char text[4096];
  while (mounts != nullptr && getmntent_r(mounts.get(), &entry, text, sizeof(text)) != nullptr) {
    if (strcmp(entry.mnt_type, "cgroup2") == 0) return entry.mnt_dir;
  }
  return {};
}

bool IsBpffs(const char* path) {
  struct statfs fs {};
  return statfs(path, &fs) == 0 && static_cast<uint32_t>(fs.f_type) == BPF_FS_MAGIC;
}

// Not having it is no reason not to serve: it is for connections between network namespaces. Why is
// in the log (SynOption has said it).
bool AttachSynOption(SynOption& syn_option, const SystemOptions& options) {
  if (options.syn_option == "off") return false;
  if (options.syn_option != "auto")
    return syn_option.Attach(options.syn_option, options.syn_option_pins) == 0;
  const std::string root = CgroupRoot();
  if (root.empty()) {
    Warn("SYN option: no cgroup2 is mounted");
    return false;
  }
  const bool pinned = options.syn_option_pins.empty() && IsBpffs(kBpfDir);
  const std::string pins =
      pinned ? std::string(kBpfDir).append("/postern") : options.syn_option_pins;
  return syn_option.Attach(root, pins) == 0;
}

}  // namespace

pstn_uuid HostGid(const RuntimeDir& dir) {
  UniqueFd fd(open(dir.File("gid").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  pstn_uuid gid{};
  if (fd.ok() && read(fd.get(), &gid, sizeof(gid)) == sizeof(gid)) return gid;
  gid = NewUuid();
  gid.hi = (gid.hi & ~0xf000ull) | 0x4000ull;      // version 4 (RFC 9562, 5.4)
  gid.lo = (gid.lo & ~(3ull << 62)) | 2ull << 62;  // variant 10
  if (!fd.ok() || pwrite(fd.get(), &gid, sizeof(gid), 0) != sizeof(gid))
    Warn("the host's GID is new at each start: %s", strerror(errno));
  return gid;
}

int MakeBells(const RuntimeDir& dir) {
  BellSpace bells;
  const int error = bells.Enter(dir.File(kBells));
  if (error != 0) Warn("%s: %s", dir.File(kBells).c_str(), strerror(-error));
  return error == 0 ? 0 : 1;
}

int ServeSystem(event_base* base, RuntimeDir& dir, const SystemOptions& options,
                void (*ready)(void*), void* context) {
  std::string error;
  std::optional<Policy> policy = Policy::Load(options.policy, error);
  if (!policy) {
    Warn("%s", error.c_str());
    return 1;
  }
  UniqueFd listener = dir.Listen();
  if (!listener.ok()) {
    Warn("%s: %s", dir.File(kBrokerSocket).c_str(), strerror(errno));
    return 1;
  }
  // To attach takes more than to serve; what is attached stays so by its descriptors.
  SynOption syn_option;
  const bool marks_syns = AttachSynOption(syn_option, options);
  BellSpace bells;
  if (const int failed = bells.Enter(dir.File(kBells)); failed != 0)
    Warn("network namespaces are not connected: %s", strerror(-failed));
  Vis vis(base, options.vi);
  (void)GiveUpRights(Role::kSystem, vis.enabled());
  Broker broker(base, std::move(listener), std::move(*policy), HostGid(dir), bells, marks_syns,
                vis);
  Event reload(base, SIGHUP, static_cast<short>(EV_SIGNAL | EV_PERSIST), [&] {
    std::optional<Policy> next = Policy::Load(options.policy, error);
    if (!next) return Warn("the policy stays as it is: %s", error.c_str());
    broker.SetPolicy(std::move(*next));
    Note("policy read again");
  });
  reload.Add();
  ready(context);
  event_base_dispatch(base);
  dir.RemoveSocket();
  return 0;
}

}  // namespace postern::daemon
