// selftest.cc - chooses causes, has them forced one by one, and says what came of it.
// SPDX-License-Identifier: Apache-2.0
#include "selftest.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>

#include "../line/ask.h"
#include "selftest_guard.h"
#include "selftest_world.h"
#include "wire/clc/clc_diagnosis.h"

namespace postern::ctl_command::selftest {
namespace {

enum class Verdict : uint8_t { kPassed, kFailed, kSkipped };

struct Result {
  const Cause* cause;
  Verdict verdict = Verdict::kSkipped;
  Outcome outcome;
};

bool Fits(const std::string& expected, const std::string& happened) {
  return expected.empty() || expected == happened;
}

bool AsExpected(const Outcome& expected, const Outcome& happened) {
  return Fits(expected.path, happened.path) && Fits(expected.reason, happened.reason) &&
         Fits(expected.code, happened.code) && happened.data;
}

const char* VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPassed:
      return "ok";
    case Verdict::kFailed:
      return "FAILED";
    default:
      return "skipped";
  }
}

// With its name, where it has one.
std::string CodeWithName(const std::string& code) {
  if (code.size() != 8 || code.find_first_not_of("0123456789abcdef") != std::string::npos)
    return code.empty() ? "-" : code;
  return code + " " + ClcDiagnosisName(static_cast<uint32_t>(std::stoul(code, nullptr, 16)));
}

std::string OrDash(const std::string& text) { return text.empty() ? "-" : text; }

void Show(const Result& result) {
  const Outcome &expected = result.cause->expected, &happened = result.outcome;
  if (result.verdict == Verdict::kSkipped) {
    printf("skipped  %-44s %s\n", result.cause->name.c_str(), happened.remark.c_str());
  } else {
    printf("%-8s %-44s expected %-9s  was %-9s  reason %-14s code %-29s data %s%s%s\n",
           VerdictName(result.verdict), result.cause->name.c_str(), OrDash(expected.path).c_str(),
           OrDash(happened.path).c_str(), OrDash(happened.reason).c_str(),
           CodeWithName(happened.code).c_str(), happened.data ? "ok" : "FAILED",
           happened.remark.empty() ? "" : "  ", happened.remark.c_str());
    if (result.verdict == Verdict::kFailed)
      printf("         %-44s expected reason %s, code %s: %s\n", "",
             OrDash(expected.reason).c_str(), CodeWithName(expected.code).c_str(),
             result.cause->what.c_str());
  }
  fflush(stdout);
}

Json ToJson(const Outcome& outcome) {
  return {{"path", outcome.path},
          {"reason", outcome.reason},
          {"code", outcome.code},
          {"data", outcome.data}};
}

void ShowJson(const std::vector<Result>& results) {
  Json list = Json::array();
  for (const Result& result : results)
    list.push_back({{"cause", result.cause->name},
                    {"what", result.cause->what},
                    {"verdict", VerdictName(result.verdict)},
                    {"expected", ToJson(result.cause->expected)},
                    {"happened", ToJson(result.outcome)},
                    {"remark", result.outcome.remark}});
  std::cout << Json({{"causes", list}}).dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

bool Chosen(const Request& request, const Cause& cause) {
  return request.only.empty() ||
         std::any_of(request.only.begin(), request.only.end(), [&](const std::string& name) {
           return cause.name.compare(0, name.size(), name) == 0;
         });
}

Causes All(const Request& request) {
  Causes all;
  AddSimulated(all);
  AddClients(all);
  AddServers(all);
  AddRelays(all);
  AddPairs(all);
  std::erase_if(all, [&](const Cause& cause) { return !Chosen(request, cause); });
  return all;
}

Result Force(const Cause& cause, World* world) {
  Result result{&cause, Verdict::kFailed, {}};
  try {
    result.outcome = cause.force(world);
    if (AsExpected(cause.expected, result.outcome)) result.verdict = Verdict::kPassed;
  } catch (const std::exception& error) {
    result.outcome.remark = error.what();
  }
  return result;
}

int Sum(const Request& request, const std::vector<Result>& results) {
  const auto count = [&](Verdict verdict) {
    return std::count_if(results.begin(), results.end(),
                         [&](const Result& r) { return r.verdict == verdict; });
  };
  const auto passed = count(Verdict::kPassed), failed = count(Verdict::kFailed);
  if (request.json) {
    ShowJson(results);
  } else {
    printf("%ld passed, %ld failed, %ld skipped\n", static_cast<long>(passed),
           static_cast<long>(failed), static_cast<long>(count(Verdict::kSkipped)));
  }
  if (failed != 0) return 1;
  return passed != 0 ? 0 : kExitNothingRun;
}

int ForceAll(const Request& request, const Causes& causes, const Place& place) {
  std::vector<Result> results;
  std::unique_ptr<World> world;
  std::string why_not;
  for (const Cause& cause : causes) {
    if (cause.needs_world && world == nullptr && why_not.empty()) {
      try {
        world = std::make_unique<World>(place);
      } catch (const Unavailable& reason) {
        why_not = reason.what();
      }
    }
    if (cause.needs_world && world == nullptr) {
      results.push_back({&cause, Verdict::kSkipped, {"", "", "", false, why_not}});
    } else {
      results.push_back(Force(cause, cause.needs_world ? world.get() : nullptr));
      if (request.verbose && world != nullptr && results.back().verdict == Verdict::kFailed)
        std::cerr << world->Logs();
      if (world != nullptr && results.back().verdict == Verdict::kFailed) world->DropClient();
      if (world != nullptr) world->Repair();
    }
    if (!request.json) Show(results.back());
  }
  return Sum(request, results);
}

}  // namespace

int Run(const Request& request) {
  const Causes causes = All(request);
  if (causes.empty()) throw std::runtime_error("no cause has that name; --list names them");
  if (request.list) {
    for (const Cause& cause : causes)
      printf("%-50s %s%s\n", cause.name.c_str(), cause.what.c_str(),
             cause.needs_world ? " (needs root)" : "");
    return 0;
  }
  return Guarded([&](const Place& place) { return ForceAll(request, causes, place); });
}

}  // namespace postern::ctl_command::selftest
