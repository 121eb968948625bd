// selftest_sim.cc - see selftest_sim.h.
// SPDX-License-Identifier: Apache-2.0
#include "selftest_sim.h"

#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <initializer_list>
#include <thread>

namespace postern::ctl_command::selftest {
namespace {

using Word = SimMemory::Buffer::Word;
constexpr int kQuietMs = 30;  // of silence on loopback, and nothing is under way any more
constexpr uint64_t kFirstToken = 0x1000;

// One end: its machine, its device, its half of the connection.
class End {
 public:
  End(const SimSide& side, ClcRole role, Wire wire, const void* pair)
      : side_(side), role_(role), wire_(std::move(wire)), pair_(pair) {
    ClcInit(machine_, role);
  }
  void Start(uint64_t now_ns) { Step(ClcEvent::Start(side_.fault.start_diagnosis), now_ns); }
  // True: something happened.
  bool Look(uint64_t now_ns);
  void Timer(uint64_t now_ns) { Step(ClcEvent::Timer(), now_ns); }
  bool over() const { return gone_ || ClcIsOver(machine_); }
  bool gone() const { return gone_; }
  // Does nothing more, but its connection is open.
  bool stuck() const { return silent_; }
  uint64_t deadline_ns() const { return silent_ ? UINT64_MAX : machine_.deadline_ns; }
  ClcState state() const { return ClcStateOf(machine_); }
  const ClcMachine& machine() const { return machine_; }
  Wire& wire() { return wire_; }

 private:
  void Step(const ClcEvent& event, uint64_t now_ns);
  void Send(std::span<const uint8_t> bytes);
  ClcEvent Answer(ClcDo request);
  ClcEvent Register();
  bool Settle(uint64_t token, Word to);
  bool Dies();

  SimSide side_;
  ClcRole role_;
  Wire wire_;
  const void* pair_;
  ClcMachine machine_{};
  unsigned events_ = 0, messages_ = 0;
  bool gone_ = false, silent_ = false;
};

bool End::Dies() {
  if (side_.fault.end == SimEnd::kLives || events_ < side_.fault.after_events) return false;
  if (side_.fault.end == SimEnd::kSilent) {
    silent_ = true;
    return true;
  }
  gone_ = true;
  if (side_.fault.end == SimEnd::kResets) {
    wire_.Reset();
  } else {
    wire_.Close();
  }
  return true;
}

void End::Send(std::span<const uint8_t> bytes) {
  messages_++;
  const SimFault& fault = side_.fault;
  if (messages_ != fault.instead_of_message) return (void)wire_.Send(bytes);
  if (!fault.garbage.empty()) return (void)wire_.Send(fault.garbage);
  if (fault.decline_instead == 0) return (void)wire_.Send(bytes);
  const uint8_t version = messages_ == 1 && role_ == ClcRole::kClient ? 1 : 2;
  (void)wire_.Send(Encode(ClcMakeDecline(side_.local, version, fault.decline_instead)));
  gone_ = true;  // as a machine; the connection is TCP's now
}

void End::Step(const ClcEvent& event, uint64_t now_ns) {
  if (over() || silent_ || Dies()) return;
  ClcEvent next = event;
  for (bool more = true; more && !over();) {
    events_++;
    ClcActions actions{};
    ClcStep(machine_, side_.local, next, now_ns, actions);
    for (uint32_t i = 0; i < actions.count; i++) {
      if (actions.list[i] == ClcDo::kSend) Send(actions.message());
      if (actions.list[i] == ClcDo::kRelease) side_.memory->buffers.erase(machine_.own_token);
      if (actions.list[i] == ClcDo::kAbort) wire_.Reset();
    }
    ClcActed(machine_);
    const ClcDo last = actions.last();
    more = last == ClcDo::kRegister || last == ClcDo::kAttach || last == ClcDo::kAcknowledge ||
           last == ClcDo::kWithdraw;
    if (last == ClcDo::kRegister && side_.fault.slow_register) return;
    if (last == ClcDo::kAttach && side_.fault.slow_attach) return;
    if (more && !over() && Dies()) return;
    if (more) next = Answer(last);
  }
}

ClcEvent End::Register() {
  if (side_.fault.register_diagnosis != 0)
    return ClcEvent::DeviceFailed(side_.fault.register_diagnosis);
  ClcDmb dmb;
  dmb.token = side_.fault.token != 0 ? side_.fault.token
                                     : kFirstToken + (role_ == ClcRole::kServer ? 1 : 0);
  dmb.link_id = 1;
  dmb.size_code = 2;
  // A number that is taken is not given out twice.
  if (!side_.memory->buffers.emplace(dmb.token, SimMemory::Buffer{pair_, Word::kOpen}).second)
    return ClcEvent::DeviceFailed(kClcDiagInternal);
  return ClcEvent::DeviceOk(dmb);
}

// Compare-and-swap in the client's buffer, from whichever side.
bool End::Settle(uint64_t token, Word to) {
  const auto at = side_.memory->buffers.find(token);
  if (at == side_.memory->buffers.end() || at->second.owner != pair_) return false;
  if (at->second.word == Word::kOpen) at->second.word = to;
  return at->second.word == to;
}

ClcEvent End::Answer(ClcDo request) {
  if (request == ClcDo::kRegister) return Register();
  if (request == ClcDo::kAttach) {
    if (side_.fault.attach_diagnosis != 0)
      return ClcEvent::DeviceFailed(side_.fault.attach_diagnosis);
    if (side_.fault.attaches_anything) return ClcEvent::DeviceOk();
    // As the broker: a number means something only to the side that it was made for.
    const auto at = side_.memory->buffers.find(machine_.peer_token);
    const bool found = at != side_.memory->buffers.end() && at->second.owner == pair_;
    return found ? ClcEvent::DeviceOk() : ClcEvent::DeviceFailed();
  }
  const bool ok = request == ClcDo::kAcknowledge ? Settle(machine_.peer_token, Word::kAttached)
                                                 : Settle(machine_.own_token, Word::kWithdrawn);
  return ok ? ClcEvent::DeviceOk() : ClcEvent::DeviceFailed();
}

bool End::Look(uint64_t now_ns) {
  if (over() || silent_) return false;
  if (role_ == ClcRole::kClient && state() == ClcState::kProvisional) {
    const auto own = side_.memory->buffers.find(machine_.own_token);
    if (own != side_.memory->buffers.end() && own->second.word == Word::kAttached) {
      Step(ClcEvent::Acknowledged(), now_ns);
      return true;
    }
  }
  if (!ClcWantsMessage(machine_)) return false;
  pollfd p{wire_.fd(), POLLIN, 0};
  if (poll(&p, 1, 0) != 1) return false;
  Bytes message;
  switch (wire_.Read(message, kPatienceMs)) {
    case Got::kMessage:
    case Got::kNoClc:
      Step(ClcEvent::Message(message), now_ns);
      break;
    case Got::kClosed:
      Step(ClcEvent::PeerClosed(), now_ns);
      break;
    default:
      Step(ClcEvent::Reset(), now_ns);
  }
  return true;
}

// The server's program: it echoes what comes, and no more than comes.
bool DataGoesThrough(Wire& client, Wire& server) {
  std::thread echo([&server] {
    Bytes room(64 * 1024);
    for (size_t done = 0; done < kDataBytes;) {
      const ssize_t n = recv(server.fd(), room.data(), room.size(), 0);
      if (n <= 0 || !server.Send({room.data(), static_cast<size_t>(n)})) return;
      done += static_cast<size_t>(n);
    }
  });
  const bool ok = client.Exchange();
  if (!ok) (void)shutdown(server.fd(), SHUT_RDWR);
  echo.join();
  return ok;
}

struct Loop {
  Fd listener;
  sockaddr_in address;
  Loop() : listener(Listen(Fd(socket(AF_INET, SOCK_STREAM, 0)), Address("127.0.0.1", 0))) {
    socklen_t size = sizeof(address);
    (void)getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  }
  std::pair<Wire, Wire> Join() {
    Wire client(Connect(Fd(socket(AF_INET, SOCK_STREAM, 0)), address));
    Wire server(Accept(listener.get(), kPatienceMs));
    return {std::move(client), std::move(server)};
  }
};

void Play(End& client, End& server) {
  uint64_t now_ns = 1'000'000'000;
  client.Start(now_ns);
  server.Start(now_ns);
  while ((!client.over() && !client.stuck()) || (!server.over() && !server.stuck())) {
    const bool client_moved = client.Look(now_ns);  // both look, whatever the first has found
    const bool server_moved = server.Look(now_ns);
    if (client_moved || server_moved) continue;
    pollfd polled[2] = {{client.over() || client.stuck() ? -1 : client.wire().fd(), POLLIN, 0},
                        {server.over() || server.stuck() ? -1 : server.wire().fd(), POLLIN, 0}};
    if (poll(polled, 2, kQuietMs) > 0) continue;
    End& first = client.over() || server.deadline_ns() < client.deadline_ns() ? server : client;
    End& next = first.over() ? client : first;
    if (next.deadline_ns() == UINT64_MAX) throw std::runtime_error("both ends wait for ever");
    now_ns = next.deadline_ns();
    next.Timer(now_ns);
  }
}

bool OnTcp(const End& end) { return end.state() == ClcState::kTcp || end.gone(); }

std::string ReasonOf(const ClcMachine& machine) {
  if (ClcStateOf(machine) == ClcState::kAborted)
    return ClcAbortName(static_cast<ClcAbort>(machine.abort));
  if (ClcStateOf(machine) != ClcState::kTcp) return "";
  return machine.is_peer_diagnosis != 0 ? "peer declined" : "declined";
}

}  // namespace

SimPlan HealthyPlan() {
  SimPlan plan;
  plan.client.memory = plan.server.memory = std::make_shared<SimMemory>();
  for (SimSide* side : {&plan.client, &plan.server}) {
    side->local.gid = {0x1122334455667788, 0x99aabbccddeeff00};
    side->local.ueid_count = 1;
    (void)ClcUeidFromText("SELFTEST", side->local.ueids[0]);
    memset(side->local.host_name, ' ', sizeof(side->local.host_name));
  }
  return plan;
}

Outcome Simulate(const SimPlan& plan) {
  Loop loop;
  auto [client_wire, server_wire] = loop.Join();
  End client(plan.client, ClcRole::kClient, std::move(client_wire), &loop);
  End server(plan.server, ClcRole::kServer, std::move(server_wire), &loop);
  Play(client, server);
  Outcome outcome;
  const End& teller = server.gone() || server.stuck() ? client : server;
  outcome.reason = ReasonOf(teller.machine());
  if (teller.machine().diagnosis != 0) outcome.code = CodeText(teller.machine().diagnosis);
  if (client.state() == ClcState::kSmcD || server.state() == ClcState::kSmcD) {
    outcome.path = client.state() == server.state() ? kSmcD : "SMC-D at one end only";
    outcome.data = client.state() == server.state();
    return outcome;
  }
  if (OnTcp(client) && OnTcp(server) && client.wire().ok() && server.wire().ok()) {
    outcome.path = kTcp;
    outcome.data = DataGoesThrough(client.wire(), server.wire());
    return outcome;
  }
  // The side that is left sees the end, and the client comes again.
  auto [again, other] = loop.Join();
  outcome.path = kTcpAgain;
  outcome.data = DataGoesThrough(again, other);
  return outcome;
}

}  // namespace postern::ctl_command::selftest
