// answers.cc - how many questions a server of a text or record protocol answers in a second.
// SPDX-License-Identifier: Apache-2.0
//
//   answers -p PORT -q QUESTION [-g GREETING] [-e END | -n BYTES | -l]
//           [-c CONNECTIONS] [-t SECONDS] [-o]
//
// Each connection reads until GREETING, if there is one, and then asks again and again: it sends
// QUESTION and reads until END (default "\n"), or BYTES bytes, or (-l) as many as the answer's first
// two bytes say (DNS over TCP). -o: one question a connection, which the client closes. In texts,
// \r, \n and \xHH are bytes. Whatever else the server does is an error.

#include <getopt.h>
#include <sys/epoll.h>

#include <cinttypes>
#include <string>
#include <vector>

#include "measuring.h"

namespace postern::perf {
namespace {

struct Talk {
  Endpoint endpoint;
  std::string question, greeting, end = "\n";
  std::size_t bytes = 0;    // of an answer; 0: by its end
  bool has_length = false;  // an answer begins with its length
  bool once = false;
  int connections = 8;
  std::uint64_t seconds = 1;
};

struct Connection {
  int fd = -1;
  bool greeted = false;
  std::string answer;
};

std::string Bytes(const char* text) {
  std::string out;
  for (const char* p = text; *p != '\0'; ++p) {
    if (*p != '\\') {
      out += *p;
      continue;
    }
    ++p;
    if (*p == 'r') {
      out += '\r';
    } else if (*p == 'n') {
      out += '\n';
    } else if (*p == 'x' && p[1] != '\0' && p[2] != '\0') {
      const char hex[] = {p[1], p[2], '\0'};
      out += static_cast<char>(std::strtoul(hex, nullptr, 16));
      p += 2;
    } else {
      DieWith("in a text, \\ is followed by r, n or xHH");
    }
  }
  return out;
}

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Whether the answer is there, whole; more than that is an error.
bool IsWhole(const Talk& talk, const std::string& answer) {
  std::size_t want = talk.bytes;
  if (talk.has_length) {
    if (answer.size() < 2) return false;
    want = 2 + (static_cast<std::size_t>(static_cast<unsigned char>(answer[0])) << 8 |
                static_cast<unsigned char>(answer[1]));
  }
  if (want == 0) return EndsWith(answer, talk.end);
  if (answer.size() > want) DieWith("an answer is longer than expected");
  return answer.size() == want;
}

class Client {
 public:
  explicit Client(const Talk& talk)
      : talk_(talk), address_(talk.endpoint), epoll_(::epoll_create1(0)) {
    if (epoll_ < 0) Die("epoll_create1");
    all_.resize(static_cast<std::size_t>(talk.connections));
    for (Connection& c : all_) Begin(c);
  }

  // Answers that came within the time.
  std::uint64_t Run() {
    const double end_s = SecondsNow() + static_cast<double>(talk_.seconds);
    std::vector<epoll_event> events(all_.size());
    while (SecondsNow() < end_s) {
      const int n = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 10'000);
      if (n < 0) Die("epoll_wait");
      if (n == 0) DieWith("no answer for ten seconds");
      for (int i = 0; i < n; ++i)
        Look(*static_cast<Connection*>(events[static_cast<std::size_t>(i)].data.ptr));
    }
    return answers_;
  }

 private:
  void Begin(Connection& c) {
    c = {};
    c.fd = Dial(address_);
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.ptr = &c;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, c.fd, &event) != 0) Die("epoll_ctl");
    c.greeted = talk_.greeting.empty();
    if (c.greeted) SendAll(c.fd, talk_.question.data(), talk_.question.size());
  }

  void Look(Connection& c) {
    char buffer[65536];
    const ssize_t n = ::recv(c.fd, buffer, sizeof(buffer), 0);
    if (n < 0) Die("recv");
    if (n == 0) DieWith("the server has closed a connection");
    c.answer.append(buffer, static_cast<std::size_t>(n));
    if (!c.greeted) {
      if (c.answer.find(talk_.greeting) == std::string::npos || c.answer.back() != '\n') return;
      c.greeted = true;
    } else {
      if (!IsWhole(talk_, c.answer)) return;
      ++answers_;
      if (talk_.once) {
        if (::close(c.fd) != 0) Die("close");
        Begin(c);
        return;
      }
    }
    c.answer.clear();
    SendAll(c.fd, talk_.question.data(), talk_.question.size());
  }

  const Talk& talk_;
  SocketAddress address_;
  int epoll_;
  std::vector<Connection> all_;
  std::uint64_t answers_ = 0;
};

}  // namespace
}  // namespace postern::perf

int main(int argc, char** argv) {
  using namespace postern::perf;
  Talk talk;
  int option = 0;
  while ((option = ::getopt(argc, argv, "p:q:g:e:n:lc:t:o")) != -1) {
    switch (option) {
      case 'p':
        talk.endpoint.port = static_cast<std::uint16_t>(ParseNumber(optarg, 65535));
        break;
      case 'q':
        talk.question = Bytes(optarg);
        break;
      case 'g':
        talk.greeting = Bytes(optarg);
        break;
      case 'e':
        talk.end = Bytes(optarg);
        break;
      case 'n':
        talk.bytes = ParseNumber(optarg, 1 << 20);
        break;
      case 'l':
        talk.has_length = true;
        break;
      case 'c':
        talk.connections = static_cast<int>(ParseNumber(optarg, 10'000));
        break;
      case 't':
        talk.seconds = ParseNumber(optarg, 3600);
        break;
      case 'o':
        talk.once = true;
        break;
      default:
        return 2;
    }
  }
  if (talk.endpoint.port == 0 || talk.question.empty() || talk.connections == 0) {
    std::fprintf(stderr,
                 "usage: answers -p PORT -q QUESTION [-g GREETING] [-e END | -n BYTES | -l] "
                 "[-c CONNECTIONS] [-t SECONDS] [-o]\n");
    return 2;
  }
  RaiseFileLimit();
  const double start_s = SecondsNow();
  const std::uint64_t answers = Client(talk).Run();
  std::printf("answers_per_sec %.1f\n", static_cast<double>(answers) / (SecondsNow() - start_s));
}
