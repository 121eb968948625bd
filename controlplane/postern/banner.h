// banner.h - the one line that `postern -v` says: whether the command is accelerated, and how.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/schema/options.h"

namespace postern::wrapper {

// `why_off`: empty, or what is in the way. It asks the posternd of that directory.
std::string BannerText(const Options& options, const std::string& runtime_dir,
                       const std::string& why_off);

}  // namespace postern::wrapper
