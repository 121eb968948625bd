// SPDX-License-Identifier: Apache-2.0
// vforking.h - a child of vfork() in its parent's memory, until it is another image.
//
// It has descriptors of its own, and the tables are its parent's. So what it does to numbers
// (close, dup2, open) goes to the kernel alone; what it does with a connection, it does as the
// thread that has made it, which waits. Its next image is as one of posix_spawn(): it has a slot
// made beforehand, and finds its sockets by their cookies.
#pragma once

#include <cstddef>
#include <cstdint>

namespace postern {

struct VforkChild {
  uint32_t slot;  // PSTN_NONE: none was free
  int parent;     // the process whose memory it is
  bool prepared;  // there was a stack: `slot` counts
  uint64_t mask;  // of the program's thread
  char* attach;   // the variable for the image (ExecPrepare); null or empty: there is none
  char** env;     // the image's environment, which the parent gives back
  size_t env_bytes;
};
inline constexpr size_t kAttachBytes = 4096;

// Of the thread that has called vfork(), and so of its child.
extern constinit thread_local VforkChild t_vfork_child __attribute__((tls_model("initial-exec")));

// In a child of vfork(), whose next image has no library: what that inherits becomes the kernel's.
// False: there is no room for the process that would do it.
bool ExportByChild(VforkChild& child);

}  // namespace postern
