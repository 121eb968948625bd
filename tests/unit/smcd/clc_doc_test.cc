// SPDX-License-Identifier: Apache-2.0
// clc_doc_test.cc - the tables of docs/protocols/smcd.md are those of the code.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "../kit/catch.h"
#include "smcd/clc_fsm.h"

namespace postern {
namespace {

constexpr auto kStates = static_cast<unsigned>(ClcState::kEnd);
constexpr auto kEvents = static_cast<unsigned>(ClcEventKind::kEnd);

std::string Seconds(ClcState state) {
  constexpr uint64_t kTimesNs[] = {
#define PSTN_CLC_STATE(name, time_ns) time_ns,
      PSTN_CLC_STATES(PSTN_CLC_STATE)
#undef PSTN_CLC_STATE
  };
  const uint64_t time_ns = kTimesNs[static_cast<size_t>(state)];
  return time_ns == 0 ? "" : std::to_string(time_ns / 1'000'000'000) + " s";
}

// "Accept `TakeAccept`; Proposal, Confirm `Unexpected`": by handler, in the order of the events.
std::string Cells(ClcState state) {
  std::vector<std::pair<std::string, std::string>> groups;  // handler, events
  for (unsigned e = 0; e < kEvents; e++) {
    const auto event = static_cast<ClcEventKind>(e);
    const std::string handler = ClcCellName(state, event);
    if (handler == "Impossible") continue;
    size_t i = 0;
    while (i < groups.size() && groups[i].first != handler) i++;
    if (i == groups.size()) groups.emplace_back(handler, "");
    groups[i].second += (groups[i].second.empty() ? "" : ", ") + std::string(ClcEventName(event));
  }
  std::string text;
  for (const auto& [handler, events] : groups)
    text += (text.empty() ? "" : "; ") + events + " `" + handler + "`";
  return text;
}

std::string Edges(ClcState state) {
  std::string text;
  for (unsigned s = 0; s < kStates; s++) {
    if ((ClcEdges(state) >> s & 1u) == 0) continue;
    text += (text.empty() ? "" : ", ") + std::string(ClcStateName(static_cast<ClcState>(s)));
  }
  return text;
}

std::string StateTable() {
  std::string text = "| state | at most | event and handler | leads to |\n|---|---|---|---|\n";
  for (unsigned s = 0; s < kStates; s++) {
    const auto state = static_cast<ClcState>(s);
    text += "| " + std::string(ClcStateName(state)) + " | " + Seconds(state) + " | " +
            Cells(state) + " | " + Edges(state) + " |\n";
  }
  return text;
}

std::string DiagnosisTable() {
  std::string text = "| code | name | meaning |\n|---|---|---|\n";
  for (uint32_t i = 0; i < kClcDiagnosisCount; i++) {
    const uint32_t code = ClcDiagnosisAt(i);
    char hex[16];
    snprintf(hex, sizeof hex, "%08x", code);
    text += "| " + std::string(hex) + " | " + ClcDiagnosisName(code) + " | " +
            ClcDiagnosisText(code) + " |\n";
  }
  return text;
}

std::string Doc() {
  std::ifstream file(std::string(POSTERN_SOURCE_DIR) + "/docs/protocols/smcd.md");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// On a mismatch the right table is printed, to be copied.
void CheckHas(const std::string& doc, const std::string& table) {
  if (doc.find(table) == std::string::npos)
    FAIL_CHECK("docs/protocols/smcd.md lacks this table:\n" << table);
}

TEST_CASE("clc doc: the state table is the code's") { CheckHas(Doc(), StateTable()); }

TEST_CASE("clc doc: the diagnoses are the code's") { CheckHas(Doc(), DiagnosisTable()); }

TEST_CASE("clc doc: each handler is explained") {
  const std::string doc = Doc();
  for (unsigned s = 0; s < kStates; s++) {
    for (unsigned e = 0; e < kEvents; e++) {
      const std::string name = ClcCellName(static_cast<ClcState>(s), static_cast<ClcEventKind>(e));
      INFO(name);
      CHECK(doc.find("\n| `" + name + "` | ") != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace postern
