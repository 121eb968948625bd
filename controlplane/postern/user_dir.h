// user_dir.h - the per-user directory that holds posternd's socket.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace postern::wrapper {

// Path of the runtime directory, which exists, is ours and open to no other user:
//   $POSTERN_RUNTIME_DIR, when set; else
//   where a user's is (place/default_dir.h).
// Dies when the directory cannot be trusted, since its owner could pose as posternd, or when the
// one that is set cannot be had. Empty: there is no place for one, as `why_not` says.
std::string RuntimeDir(std::string& why_not);

}  // namespace postern::wrapper
