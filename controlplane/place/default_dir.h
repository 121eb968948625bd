// default_dir.h - where a user's posternd is, if POSTERN_RUNTIME_DIR does not say so.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace postern {

// $XDG_RUNTIME_DIR/postern, when XDG_RUNTIME_DIR is a directory of ours that we can write; else
// /tmp/postern-UID, which may not exist yet; else, when another user has that name, the first of
// /tmp/postern-UID-XXXXXX that are ours. Such a one is made when there is none and `make` is set;
// empty when there is none, or errno says why it can't be made.
std::string DefaultRuntimeDir(bool make);

}  // namespace postern
