// user_dir.h - the per-user directory that holds posternd's socket.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace postern::wrapper {

// Path of the runtime directory, which exists, is ours and open to no other user:
//   $POSTERN_RUNTIME_DIR, when set; else
//   where a user's is (place/default_dir.h).
// Dies when the directory cannot be had or cannot be trusted: its owner could pose as posternd.
std::string RuntimeDir();

}  // namespace postern::wrapper
