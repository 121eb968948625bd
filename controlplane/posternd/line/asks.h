// asks.h - questions under way on a line where both sides may ask.
// SPDX-License-Identifier: Apache-2.0
//
// A question carries a seq that its answer repeats; the top bit says which side's numbering it is,
// so that an answer is told from a question. A peer that does not answer in time is cut off: a
// silent line must not hold up clients that wait for its answer. In time means: each question, if
// the peer is a member; the broker, which has others to answer, is in time while it answers any.
#pragma once
#include <cstdint>
#include <functional>
#include <map>

#include "../kit/event.h"
#include "client.h"

namespace postern::daemon {

class Asks {
 public:
  // status: 0 or a positive errno; EPIPE: the line has ended, or was too late.
  using Done = std::function<void(int status, const ctl::Msg& answer, UniqueFd fd)>;

  // whose: 0 or ctl::kBrokerSeq.
  Asks(event_base* base, uint32_t whose);

  void Ask(Client& line, ctl::Msg question, SharedFd fd, Done done);
  // False: the message is a question.
  bool OnAnswer(const Client& line, const ctl::Msg& message, UniqueFd& fd);
  void OnGone(const Client& line);
  // How many of that line are not answered yet.
  size_t open(const Client& line) const;

 private:
  struct Question {
    Client* line;
    Done done;
    uint64_t round;
  };
  void Tick();

  const uint32_t whose_;
  uint32_t next_ = 0;
  uint64_t round_ = 0;
  std::map<uint32_t, Question> open_;
  std::map<const Client*, size_t> count_;
  uint64_t answered_ = 0;  // the round of the last answer
  Event timer_;
};

}  // namespace postern::daemon
