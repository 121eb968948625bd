// selftest_fake_server.cc - see selftest_fake_server.h.
// SPDX-License-Identifier: Apache-2.0
#include "selftest_fake_server.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

namespace postern::ctl_command::selftest {

Lent::Lent(World& world)
    : wire_(Connect(world.Socket(world.a(), Mark::kMarked), Address(world.b().ip, kEchoPort))) {
  Bytes message;
  wire_.Send(Encode(ClcMakeProposal(world.local())));
  if (wire_.Read(message, kPatienceMs) != Got::kMessage || !ClcParseAccept(message, accept_).ok())
    throw std::runtime_error("the server sends no Accept");
}

FakeServer::FakeServer(World& world, Mark mark)
    : world_(world),
      port_(world.NewPort()),
      listener_(Listen(world.Socket(world.b(), mark), Address(world.b().ip, port_))) {}

void FakeServer::Meet(Process& program) {
  program_ = &program;
  program.Write("connect " + world_.b().ip + " " + std::to_string(port_));
  wire_ = Wire(Accept(listener_.get(), kPatienceMs));
  if (!wire_.ok()) throw std::runtime_error("the client does not come");
}

Bytes FakeServer::Take(ClcType type) {
  Bytes message;
  const Got got = wire_.Read(message, kPatienceMs);
  if (got != Got::kMessage || message[4] != static_cast<uint8_t>(type))
    throw std::runtime_error("the client does not send message " +
                             std::to_string(static_cast<unsigned>(type)) + ", but " +
                             (got == Got::kMessage  ? "another"
                              : got == Got::kNoClc  ? "data"
                              : got == Got::kClosed ? "FIN"
                              : got == Got::kReset  ? "RST"
                                                    : "nothing"));
  return message;
}

ClcAccept FakeServer::MakeAccept(uint64_t token) const {
  const ClcLocal& local = world_.local();
  ClcTerms terms;
  terms.eid = local.ueids[0];
  terms.feature_mask = local.feature_mask;
  terms.release = local.release;
  terms.features = local.features;
  ClcAccept accept = ClcMakeAccept(local, ClcType::kAccept, terms, 1);
  accept.token = token;
  accept.size_code = 2;
  accept.link_id = 1;
  return accept;
}

Outcome FakeServer::TakeDecline() {
  ClcDecline decline;
  const Bytes message = Take(ClcType::kDecline);
  (void)ClcParseDecline(message, decline);
  return Serve(CodeText(decline.diagnosis));
}

namespace {

// False: it has ended. What can't be sent any more, the client will miss.
bool Forward(Wire& from, Wire& to, size_t& bytes) {
  static uint8_t room[64 * 1024];
  const ssize_t n = recv(from.fd(), room, sizeof(room), 0);
  if (n > 0) bytes += static_cast<size_t>(n);
  return n > 0 && to.ok() && to.Send({room, static_cast<size_t>(n)});
}

}  // namespace

Outcome FakeServer::Serve(const std::string& code, Wire* behind) {
  std::vector<Wire> later;
  std::string said;
  Wire none;
  Wire& back = behind != nullptr ? *behind : none;
  size_t back_bytes = 0;
  for (const uint64_t until = NowMs() + kPatienceMs; said.empty() && NowMs() < until;) {
    std::vector<pollfd> polled{{program_->out(), POLLIN, 0},
                               {listener_.get(), POLLIN, 0},
                               {wire_.ok() ? wire_.fd() : -1, POLLIN, 0},
                               {back.ok() ? back.fd() : -1, POLLIN, 0}};
    for (const Wire& wire : later) polled.push_back({wire.fd(), POLLIN, 0});
    (void)poll(polled.data(), polled.size(), 100);
    if (polled[0].revents != 0) said = program_->Read(kPatienceMs);
    if (polled[2].revents != 0 && !Forward(wire_, behind != nullptr ? back : wire_, first_bytes_))
      wire_.Close();
    if (polled[3].revents != 0 && !Forward(back, wire_, back_bytes)) {
      back.Close();
      if (wire_.ok()) wire_.Half();  // the client hears of the server's end
    }
    for (size_t i = later.size(); i > 0; i--) {
      Wire& wire = later[i - 1];
      if (polled[3 + i].revents != 0 && !Forward(wire, wire, later_bytes_))
        later.erase(later.begin() + static_cast<ptrdiff_t>(i - 1));
    }
    if (polled[1].revents != 0) later.emplace_back(Accept(listener_.get(), 0));
  }
  Outcome outcome = Judge(said, code);
  if (said.empty()) {
    program_->End(SIGKILL);
  } else if (program_->running()) {
    program_->Write("close");
    (void)program_->Read(kPatienceMs);
  }
  return outcome;
}

Outcome FakeServer::Judge(const std::string& said, const std::string& code) {
  Outcome outcome;
  outcome.code = code;
  outcome.data = said.compare(0, 3, "ok ") == 0;
  if (!outcome.data) outcome.remark = said.empty() ? "the client does not come to an end" : said;
  if (!outcome.data) return outcome;
  world_.a().daemon->Signal(SIGCONT);
  const Json socket = world_.SocketOf(world_.a(), said.substr(3), "local");
  if (socket.is_null()) outcome.remark = "posternd does not know " + said.substr(3);
  if (!socket.is_null()) outcome.reason = socket.at("reason").get<std::string>();
  if (!socket.is_null() && socket.at("path") == "smc-d") {
    outcome.path = kSmcD;
  } else if (first_bytes_ >= kDataBytes) {
    outcome.path = kTcp;
  } else if (later_bytes_ >= kDataBytes) {
    outcome.path = kTcpAgain;
  }
  return outcome;
}

}  // namespace postern::ctl_command::selftest
