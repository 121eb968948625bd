// SPDX-License-Identifier: Apache-2.0
// world.h - hosts that speak TCP to each other over lossy links in virtual time.
//
//     App --write/read--> Conn (SimHost) --segments--> Path: hop, hop, ... --> SimHost --> Conn -->
//     App
//
// One seed decides everything. After each entry into TCP the host checks what must hold then
// (StreamHost::Check), looks at the next deadline, and lets the connection's program run until it
// has nothing to do. TCP's timers are called when they are due or later, never before: what needs
// them earlier hangs, and a run that hangs fails.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "events.h"
#include "link_model.h"
#include "stream_host.h"

namespace postern::sim {

class SimHost;
class World;

struct SimConn : Conn {
  uint32_t id = 0;  // in its host
  uint32_t peer_host = 0;
  uint16_t local_port = 0, peer_port = 0;
  bool is_passive = false;
  bool touched = false;                     // the program has done something: TCP's Output is due
  uint64_t timer_ns = UINT64_MAX;           // an event is there for this time, or an earlier one
  uint64_t timer_spins = 0;                 // time-outs in a row at one instant
  uint64_t data_sent = 0, data_resent = 0;  // bytes of payload on the wire
  tcp::Seq high_sent;
  uint64_t rtos = 0;  // time-outs, from tcb.rto_count going up
  uint32_t rto_count_seen = 0;
  uint32_t told_mtu = 0;  // by ICMP
  class App* app = nullptr;
};

// The program at one end of a connection.
class App {
 public:
  virtual ~App() = default;
  // Something has happened, or the time asked for has come. Uses the calls below until they give
  // nothing more.
  virtual void Run(SimHost& host, SimConn& conn) = 0;
  // Why it is not finished, or "".
  virtual std::string Missing(const SimConn& conn) const = 0;
};

struct HostSettings {
  uint32_t mss = 1460;
  uint32_t send_buffer = 4 << 20, receive_buffer = 4 << 20;
  tcp::Settings tcp_settings = {};
  bool ecn = false;
  double wire_full = 0;        // how often the wire has no room
  uint64_t timer_late_ns = 0;  // timers come up to so much too late
  uint32_t row_max = 1;        // segments that TCP may hand over at once
  uint64_t gather_ns = 0;      // what comes in that time is taken at once, as runs; 0: one by one
  HostLimits limits;
};

struct Segment {
  tcp::SegmentIn in;  // without data
  std::vector<uint8_t> payload;
  uint32_t from = 0, to = 0;  // hosts
  uint16_t from_port = 0, to_port = 0;
  uint32_t ip_bytes = 0;
  uint32_t hop = 0;
  bool corrupt = false;
};

// The way from one host to another: each hop a LinkModel of its own, shared by all that pass.
class Path final : public Actor {
 public:
  struct Hop {
    LinkModel* link;
    uint32_t mtu;       // of IP
    bool tells = true;  // ICMP when a packet is too large
  };
  Path(World& world, std::vector<Hop> hops) : world_(world), hops_(std::move(hops)) {}
  void Send(Segment segment);
  void Happen(uint64_t slot) override;
  std::vector<Hop>& hops() { return hops_; }

 private:
  void Offer(Segment&& segment);
  World& world_;
  std::vector<Hop> hops_;
  std::vector<Segment> flying_;
  std::vector<uint32_t> free_;
};

class SimHost final : public StreamHost, public Actor {
 public:
  SimHost(World& world, uint32_t id, const HostSettings& settings, uint64_t seed);

  using AppMaker = std::function<std::unique_ptr<App>(const Segment& syn)>;
  void Listen(uint16_t port, AppMaker make) { listeners_[port] = std::move(make); }
  SimConn& Connect(uint32_t peer_host, uint16_t peer_port, uint16_t local_port,
                   std::unique_ptr<App> app);
  bool IsConnected(uint16_t local_port, uint32_t peer_host, uint16_t peer_port) {
    const SimConn* conn = Find(local_port, peer_host, peer_port);
    return conn != nullptr && tcp::StateOf(*conn) != tcp::State::kTimeWait;
  }

  // ---- the calls of programs
  size_t Write(SimConn& conn, const uint8_t* data, size_t count);
  size_t Read(SimConn& conn, uint8_t* out, size_t count);
  void End(SimConn& conn);    // shutdown(SHUT_WR)
  void Close(SimConn& conn);  // with unread data: a reset, as Linux does
  void WakeAt(SimConn& conn, uint64_t at_ns);

  void Arrive(Segment&& segment);
  void TakeGathered();
  void TooBig(uint16_t local_port, uint32_t peer_host, uint16_t peer_port, uint32_t mtu);
  void Happen(uint64_t what) override;
  void OpenAll();  // settings were changed: Output on each connection

  std::vector<std::unique_ptr<SimConn>>& conns() { return conns_; }
  HostSettings& settings() { return settings_; }
  uint64_t segments_out() const { return segments_out_; }
  uint64_t bytes_delivered() const { return bytes_delivered_; }
  uint64_t now() const;

  uint64_t Random() override { return random_.Next(); }
  bool Transmit(tcp::Tcb& tcb, const tcp::SegmentOut& segment) override;
  uint32_t Deliver(tcp::Tcb& tcb, const uint8_t* data, uint32_t bytes) override;

 private:
  void Take(Segment&& segment);
  void TakeRun(SimConn& conn, tcp::SegmentIn& run, std::span<Segment> segments);
  void OnReport(Conn&, tcp::Event, int) override {}
  SimConn* Find(uint16_t local_port, uint32_t peer_host, uint16_t peer_port);
  SimConn& NewConn(uint32_t peer_host, uint16_t peer_port, uint16_t local_port,
                   std::unique_ptr<App> app);
  bool AcceptSyn(const Segment& segment, tcp::Seq iss_from);  // 0: any
  tcp::OpenArgs Args();
  void After(SimConn& conn);  // each entry into TCP
  void Arm(SimConn& conn);
  void Account(SimConn& conn, const tcp::SegmentOut& segment);
  bool Launch(SimConn& conn, const tcp::SegmentOut& segment);
  void Put(SimConn* conn, const tcp::SegmentOut& segment, Segment&& out);

  World& world_;
  uint32_t id_;
  HostSettings settings_;
  TestRandom random_;
  uint32_t iss_base_ = 0, ts_offset_ = 0;
  std::vector<std::unique_ptr<SimConn>> conns_;
  std::vector<std::unique_ptr<App>> apps_;
  std::map<uint16_t, AppMaker> listeners_;
  std::map<uint64_t, SimConn*> by_key_;
  uint64_t segments_out_ = 0, bytes_delivered_ = 0;
  std::vector<Segment> gathered_;  // settings().gather_ns
};

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {}
  SimHost& AddHost(const HostSettings& settings);
  LinkModel& AddLink(const LinkSettings& settings);
  void Join(uint32_t from, uint32_t to, std::vector<Path::Hop> hops);
  // A link of its own each way.
  void JoinBoth(uint32_t a, uint32_t b, const LinkSettings& settings, uint32_t mtu = 1500);

  Events& events() { return events_; }
  SimHost& host(uint32_t id) { return *hosts_[id]; }
  Path& path(uint32_t from, uint32_t to) { return *paths_.at({from, to}); }
  LinkModel& link(size_t number) { return *links_[number]; }

  // Until all connections of all hosts are CLOSED and nothing flies, or `limit_ns` of virtual time
  // has passed, or something is wrong.
  void Run(uint64_t limit_ns);
  // Until then, whatever is still open.
  void RunFor(uint64_t ns);
  // The first thing that is wrong, or "". With `all`: as well what is missing at the end of Run.
  std::string Problem() const;
  std::string Verdict();

 private:
  bool AllClosed() const;
  TestRandom random_;
  Events events_;
  std::vector<std::unique_ptr<SimHost>> hosts_;
  std::vector<std::unique_ptr<LinkModel>> links_;
  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<Path>> paths_;
  bool timed_out_ = false;
};

}  // namespace postern::sim
