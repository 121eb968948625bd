// ask.h - posternctl's line to posternd.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "ctl/proto.h"

namespace postern::ctl_command {

using Json = nlohmann::json;

// posternd can't be asked, although there is something in its place.
class AskError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// For how long each posternd is waited for from now on: ten seconds at first. Where all users' are
// asked, one that has stopped is not to keep the answers of the others.
void SetPatience(uint32_t seconds);
inline constexpr uint32_t kPatienceForMany = 2;

enum class Report : uint32_t { kStatus = 0, kSockets = 1, kExplain = 2 };

// Where the wrapper puts it, unless `given` says otherwise:
// POSTERN_RUNTIME_DIR or where a user's is (place/default_dir.h). Empty: there is none.
std::string RuntimeDir(const std::string& given);

// The report's text, or nothing when no posternd runs there. `pid` is for kExplain and, if it is
// not 0, for kSockets.
// `details`: of kSockets.
std::string AskText(const std::string& runtime_dir, Report report, uint32_t pid = 0,
                    bool details = false);
// The same as a value, or null.
Json Ask(const std::string& runtime_dir, Report report, uint32_t pid = 0);

// A request whose answer is a descriptor; -1 when no posternd runs there.
int AskFd(const std::string& runtime_dir, const ctl::Msg& request);

}  // namespace postern::ctl_command
