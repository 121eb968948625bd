// tickets.cc - see tickets.h.
// SPDX-License-Identifier: Apache-2.0
#include "tickets.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "../kit/fd.h"
#include "../kit/log.h"

namespace postern::daemon {

void Tickets::Load() {
  if (std::exchange(loaded_, true)) return;
  const UniqueFd file(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  struct stat st {};
  const bool is_ours = file.ok() && fstat(file.get(), &st) == 0 && S_ISREG(st.st_mode) &&
                       st.st_uid == geteuid() && (st.st_mode & 077) == 0;
  if (is_ours && pread(file.get(), &key_, sizeof(key_), 0) == sizeof(key_)) return;
  if (getrandom(&key_, sizeof(key_), 0) != sizeof(key_)) key_ = {};
  if (!is_ours || pwrite(file.get(), &key_, sizeof(key_), 0) != sizeof(key_))
    Warn("%s: %s; processes that have become another user will not be known after a restart",
         path_.c_str(), strerror(errno));
}

uint64_t Tickets::Of(const pstn_uuid& stack, uid_t uid) {
  Load();
  struct {
    pstn_uuid stack;
    uint64_t uid;
  } const of{stack, uid};
  uint8_t bytes[sizeof(of)];
  memcpy(bytes, &of, sizeof(of));
  const uint64_t hash = SipHash24(key_, bytes);
  return hash != 0 ? hash : 1;
}

}  // namespace postern::daemon
