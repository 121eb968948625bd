// SPDX-License-Identifier: Apache-2.0
// runner.h - plays a packet script against a system under test, in virtual time.
//
// Where it differs from packetdrill: time is virtual, so a script takes as long as its events take
// to compute; commands are never executed (sysctl lines are handed to the system, also those of a
// script `defaults.sh` that is named); of code blocks only what they assert is looked at
// (asserts.h); payload is checked byte for byte.
#pragma once
#include <deque>
#include <map>
#include <optional>

#include "script.h"
#include "sut.h"

namespace postern::scripts {

inline constexpr uint16_t kServicePort = 8080;
inline constexpr uint64_t kPayloadSeed = 7;

struct RunnerOptions {
  int64_t tolerance_us = 4000;  // packetdrill's defaults
  double tolerance_percent = 12.5;
  bool is_v6 = false;
  bool verbose = false;
};

class Runner {
 public:
  Runner(Sut& sut, std::string path, const RunnerOptions& options)
      : sut_(sut), path_(std::move(path)), options_(options) {}

  // False: error() is "path:line: what is wrong".
  bool Run(const Script& script);
  const std::string& error() const { return error_; }
  const std::vector<std::string>& notes() const { return notes_; }  // what was left out

 private:
  // How numbers of the script and of the wire go together, for one connection.
  struct Map {
    Flow in;  // of packets that come in
    bool is_active = false;
    bool has_local = false;
    uint32_t local_offset = 0;             // wire = script + offset, for what the system numbers
    uint32_t remote_offset = 0;            // the same for what we number
    std::map<uint32_t, uint32_t> ts_wire;  // TSval of the script -> of the wire
    bool has_ts = false;
    uint32_t ts_offset = 0;
    Bytes written;      // by the program: what goes out
    uint64_t read = 0;  // by the program
    int fd = -1;
  };
  struct Sent {
    TcpPacket packet;
    uint64_t at_ns;
  };
  struct Pending {
    const Event* event;
    int64_t start_us;
  };

  bool Fail(const Event& event, const std::string& what);
  bool Options(const Script& script);
  void Command(const std::string& command);
  void SysctlLines(const std::string& text);

  // ---- time, in microseconds since the first event
  int64_t NowUs() const;
  void AdvanceUs(int64_t us);
  bool InTime(const Event& event, TimeKind kind, int64_t want_us, int64_t end_us, int64_t is_us,
              int64_t since_us, const char* what);

  bool Play(Event event);
  bool PlayPacketIn(const Event& event);
  bool PlayIcmp(const Event& event);
  bool PlayCode(const Event& event);
  bool PlayPacketOut(const Event& event);

  // ---- packets
  void Collect();
  Map* MapFor(const PacketSpec& spec);
  Map& NewMap(const PacketSpec& spec);
  bool NextOut(const Event& event, Sent& sent);
  bool Join(const Event& event, uint32_t bytes, Sent& sent);
  bool Matches(const Event& event, Map& map, const Sent& sent);
  std::string OptionsWrong(const PacketSpec& spec, Map& map, const TcpPacket& packet);
  Bytes InboundOptions(const PacketSpec& spec, const Map& map) const;
  std::string Show(const TcpPacket& packet, const Map* map) const;

  // ---- calls (runner_calls.cc)
  bool PlayCall(const Event& event);
  bool TryPending();
  long Make(const Event& event, std::string& wrong);
  long MakeIo(const CallSpec& call, int fd, std::string& wrong);
  long MakeOption(const CallSpec& call, int fd, std::string& wrong);
  long MakePoll(const CallSpec& call, std::string& wrong);
  bool Judge(const Event& event, long result, const std::string& wrong);
  int LiveFd(const Value& value) const;
  Map* MapOf(int script_fd);

  Sut& sut_;
  std::string path_, error_;
  RunnerOptions options_;
  std::vector<std::string> notes_;
  uint64_t start_ns_ = 0;
  int64_t last_time_us_ = 0;  // of the event before, as it was scheduled
  bool last_was_inbound_ = false;
  std::deque<Sent> sent_;
  std::deque<Map> maps_;
  std::map<int, int> fds_;       // of the script -> of the system
  std::map<int, Map*> fd_maps_;  // by the script's descriptor
  Map* current_ = nullptr;
  uint16_t next_port_ = 50'000;
  std::optional<Event> pending_;
  int64_t pending_since_us_ = 0;
  int connecting_fd_ = -1;  // the script's: its SYN has not been seen yet
};

}  // namespace postern::scripts
