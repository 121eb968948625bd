// banner.cc - see banner.h.
// SPDX-License-Identifier: Apache-2.0
#include "banner.h"

#include "../posternctl/line/ask.h"

namespace postern::wrapper {
namespace {

using ctl_command::Json;

// Null: none answers.
Json StatusOf(const std::string& runtime_dir) {
  try {
    return ctl_command::Ask(runtime_dir, ctl_command::Report::kStatus);
  } catch (const std::exception&) {
    return {};
  }
}

std::string LogWords(const Options& options) {
  char level[kOptionMessageBytes];
  const std::string place = options.log_file;
  return std::string("log at level ") +
         OptionFormat(options, *OptionFind("log.level"), level, sizeof level) + " to " +
         (place.empty() ? "stderr" : place);
}

}  // namespace

std::string BannerText(const Options& options, const std::string& runtime_dir,
                       const std::string& why_off) {
  if (!why_off.empty()) return "acceleration is off: " + why_off;
  const Json status = StatusOf(runtime_dir);
  const bool has_broker = status.is_object() && status.value("broker", false);
  const std::string vi = options.vi;
  std::string text = "acceleration is on: ";
  text += has_broker ? "level 1, with peers of other users and network namespaces"
                     : "level 0, with programs of this user in this network namespace";
  text += status.is_null()
              ? "; no posternd answers in " + runtime_dir
              : "; posternd " + std::to_string(status.value("pid", 0)) + " in " + runtime_dir;
  text += has_broker ? "; broker" : "; no broker";
  text += vi.empty() ? "; no VI" : "; VI " + vi;
  if (options.strict != 0) text += "; strict";
  return text + "; " + LogWords(options);
}

}  // namespace postern::wrapper
