// turns.cc - see turns.h.
// SPDX-License-Identifier: Apache-2.0
#include "turns.h"

#include <algorithm>
#include <utility>

#include "client.h"

namespace postern::daemon {
namespace {

constexpr uint32_t kTurnsWaitMs = 10;

}  // namespace

Turns::Turns(event_base* base, int at_once, std::function<bool()> wait)
    : at_once_(at_once), wait_(std::move(wait)), run_(base, -1, 0, [this] { Run(); }) {}

void Turns::Enter(Client& client) {
  waiting_[client.uid()].push_back(&client);
  if (!run_.pending()) run_.AddMs(0);
}

void Turns::Leave(const Client& client) {
  const auto it = waiting_.find(client.uid());
  if (it == waiting_.end()) return;
  auto& lines = it->second;
  lines.erase(std::remove(lines.begin(), lines.end(), &client), lines.end());
  if (lines.empty()) waiting_.erase(it);
}

void Turns::Run() {
  if (wait_ && wait_()) return run_.AddMs(kTurnsWaitMs);
  for (int i = 0; i < at_once_ && !waiting_.empty(); ++i) {
    auto it = waiting_.upper_bound(last_);
    if (it == waiting_.end()) it = waiting_.begin();
    last_ = it->first;
    Client* const client = it->second.front();
    it->second.pop_front();
    if (it->second.empty()) waiting_.erase(it);
    if (client->TakeTurn()) waiting_[client->uid()].push_back(client);
  }
  if (!waiting_.empty() && !run_.pending()) run_.AddMs(0);
}

}  // namespace postern::daemon
