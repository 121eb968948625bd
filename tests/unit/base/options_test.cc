// SPDX-License-Identifier: Apache-2.0
// options_test.cc - the option schema, parsing of values, and loading from environment and
// profiles.
#include "base/schema/options.h"

#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "../kit/catch.h"

namespace postern {
namespace {

struct Outcome {
  OptionErr err;
  std::string message;
};

Outcome Set(Options& options, const char* key, const std::string& value) {
  char message[kOptionMessageBytes] = "";
  const OptionErr err = OptionSet(options, key, value.c_str(), message, sizeof(message));
  return {err, message};
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void Collect(void* context, const char* message) {
  static_cast<std::vector<std::string>*>(context)->push_back(message);
}

std::vector<std::string> LoadProfile(Options& options, const std::string& text) {
  std::vector<std::string> messages;
  const size_t error_count =
      OptionsLoadProfile(options, "x.conf", text.data(), text.size(), Collect, &messages);
  CHECK(error_count == messages.size());
  return messages;
}

std::vector<std::string> LoadEnv(Options& options, std::vector<const char*> envp) {
  envp.push_back(nullptr);
  std::vector<std::string> messages;
  const size_t error_count = OptionsLoadEnv(options, envp.data(), Collect, &messages);
  CHECK(error_count == messages.size());
  return messages;
}

TEST_CASE("each default is accepted and comes back in the same form", "[options]") {
  for (size_t i = 0; i < kOptionCount; ++i) {
    const OptionDesc& desc = OptionAt(i);
    INFO(desc.key);
    Options options = OptionsDefault();
    const Outcome outcome = Set(options, desc.key, desc.default_text);
    CHECK(outcome.message == "");
    CHECK(outcome.err == OptionErr::kOk);
    CHECK(OptionGiven(options, desc));
    char text[kOptionTextBytes];
    CHECK(std::string(OptionFormat(options, desc, text, sizeof(text))) == desc.default_text);
  }
}

TEST_CASE("defaults are those of the design", "[options]") {
  const Options options = OptionsDefault();
  CHECK(options.given == 0);
  CHECK(options.accel == 1);
  CHECK(options.spin_usec == 50);
  CHECK(options.spin_yield == 1);
  CHECK(options.ring_min == 4096);
  CHECK(options.ring_max == 1 << 20);
  CHECK(options.strict == 0);
  CHECK(options.io_uring == static_cast<int64_t>(IoUring::kFollow));
  CHECK(options.log_level == static_cast<int64_t>(LogLevel::kWarn));
  CHECK(std::string(options.stack_name) == "");
  char message[kOptionMessageBytes] = "";
  CHECK(OptionsCheck(options, message, sizeof(message)) == OptionErr::kOk);
}

TEST_CASE("keys and environment names are unique, and lead back", "[options]") {
  std::set<std::string> keys;
  std::set<std::string> names;
  for (size_t i = 0; i < kOptionCount; ++i) {
    const OptionDesc& desc = OptionAt(i);
    char name[128];
    keys.insert(desc.key);
    names.insert(OptionEnvName(desc, name, sizeof(name)));
    CHECK(OptionFind(desc.key) == &desc);
    Options options = OptionsDefault();
    const std::string variable = std::string(name) + "=" + desc.default_text;
    CHECK(LoadEnv(options, {variable.c_str()}).empty());
    CHECK(OptionGiven(options, desc));
  }
  CHECK(keys.size() == kOptionCount);
  CHECK(names.size() == kOptionCount);
  CHECK(names.count("POSTERN_DAEMON") == 0);
  CHECK(names.count("POSTERN_RUNTIME_DIR") == 0);
}

TEST_CASE("limits of a number are inclusive, and an error leaves the value", "[options]") {
  Options options = OptionsDefault();
  CHECK(Set(options, "spin.usec", "0").err == OptionErr::kOk);
  CHECK(Set(options, "spin.usec", "1000000").err == OptionErr::kOk);
  for (const char* bad : {"-1", "1000001", "9223372036854775807"}) {
    INFO(bad);
    const Outcome outcome = Set(options, "spin.usec", bad);
    CHECK(outcome.err == OptionErr::kRange);
    CHECK(Contains(outcome.message, "spin.usec"));
    CHECK(Contains(outcome.message, bad));
    CHECK(Contains(outcome.message, "0..1000000 us"));
  }
  for (const char* bad : {"", " ", "x", "5x", "0x10", "1e3", "-", "5 ", "9223372036854775808"}) {
    INFO(bad);
    CHECK(Set(options, "spin.usec", bad).err == OptionErr::kBadValue);
  }
  CHECK(options.spin_usec == 1000000);
}

TEST_CASE("sizes have binary units and are powers of two", "[options]") {
  Options options = OptionsDefault();
  CHECK(Set(options, "ring.max", "64K").err == OptionErr::kOk);
  CHECK(options.ring_max == 65536);
  CHECK(Set(options, "ring.max", "4m").err == OptionErr::kOk);
  CHECK(options.ring_max == 4 << 20);
  CHECK(Set(options, "ring.max", "8192").err == OptionErr::kOk);
  CHECK(options.ring_max == 8192);
  for (const char* bad : {"8M", "1G", "2K", "0", "-4K", "5000", "12K"}) {
    INFO(bad);
    CHECK(Set(options, "ring.max", bad).err == OptionErr::kRange);
  }
  for (const char* bad : {"K", "4KB", "4 K", "4T", "9999999999999G"}) {
    INFO(bad);
    CHECK(Set(options, "ring.max", bad).err == OptionErr::kBadValue);
  }
  CHECK(options.ring_max == 8192);
}

TEST_CASE("switches take the usual words", "[options]") {
  Options options = OptionsDefault();
  for (const char* word : {"on", "yes", "true", "1", "ON", "True"}) {
    options.strict = 0;
    CHECK(Set(options, "strict", word).err == OptionErr::kOk);
    CHECK(options.strict == 1);
  }
  for (const char* word : {"off", "no", "false", "0", "Off"}) {
    options.strict = 1;
    CHECK(Set(options, "strict", word).err == OptionErr::kOk);
    CHECK(options.strict == 0);
  }
  for (const char* word : {"", "2", "o", "onn", "enable"}) {
    CHECK(Set(options, "strict", word).err == OptionErr::kBadValue);
  }
}

TEST_CASE("words of an enumeration are whole words", "[options]") {
  Options options = OptionsDefault();
  CHECK(Set(options, "log.level", "debug").err == OptionErr::kOk);
  CHECK(options.log_level == static_cast<int64_t>(LogLevel::kDebug));
  for (const char* bad : {"", "deb", "debugs", "none|error", "4"}) {
    const Outcome outcome = Set(options, "log.level", bad);
    CHECK(outcome.err == OptionErr::kBadValue);
    CHECK(Contains(outcome.message, "none|error|warn|info|debug"));
  }
}

TEST_CASE("texts are bounded and clean", "[options]") {
  Options options = OptionsDefault();
  CHECK(Set(options, "log.file", std::string(255, 'a')).err == OptionErr::kOk);
  CHECK(Set(options, "log.file", std::string(256, 'a')).err == OptionErr::kRange);
  CHECK(Set(options, "log.file", "a\nb").err == OptionErr::kBadValue);
  CHECK(strlen(options.log_file) == 255);
  CHECK(Set(options, "stack.name", "web-1.a_B").err == OptionErr::kOk);
  for (const char* bad : {"../x", ".x", "a/b", "a b"}) {
    CHECK(Set(options, "stack.name", bad).err == OptionErr::kBadValue);
  }
  CHECK(std::string(options.stack_name) == "web-1.a_B");
}

TEST_CASE("port lists", "[options]") {
  Options options = OptionsDefault();
  CHECK(Set(options, "ports.exclude", "22,8000-8100,65535").err == OptionErr::kOk);
  for (const uint16_t port : std::vector<uint16_t>{22, 8000, 8050, 8100, 65535})
    CHECK(PortListHas(options.ports_exclude, port));
  for (const uint16_t port : std::vector<uint16_t>{1, 21, 23, 7999, 8101, 65534}) {
    CHECK_FALSE(PortListHas(options.ports_exclude, port));
  }
  CHECK_FALSE(PortListHas("", 22));
  for (const char* bad :
       {",", "22,", ",22", "0", "65536", "5-4", "1-", "-1", "1--2", "a", "1;2", "22, 23"}) {
    INFO(bad);
    CHECK(Set(options, "ports.exclude", bad).err == OptionErr::kBadValue);
  }
}

TEST_CASE("an unknown name gets the nearest known one", "[options]") {
  Options options = OptionsDefault();
  CHECK(Contains(Set(options, "spin.uesc", "1").message, "did you mean 'spin.usec'?"));
  CHECK(Contains(Set(options, "Accel", "1").message, "did you mean 'accel'?"));
  CHECK(Contains(Set(options, "idle_sec", "1").message, "did you mean 'daemon.idle_sec'?"));
  CHECK_FALSE(Contains(Set(options, "quite.another", "1").message, "did you mean"));
  CHECK(Set(options, "", "1").err == OptionErr::kUnknown);
  CHECK(Set(options, std::string(5000, 'x').c_str(), "1").err == OptionErr::kUnknown);
  CHECK(options.given == 0);
}

TEST_CASE("a message never outgrows its buffer", "[options]") {
  Options options = OptionsDefault();
  char message[16];
  memset(message, '#', sizeof(message));
  CHECK(OptionSet(options, "spin.usec", "x", message, 8) == OptionErr::kBadValue);
  CHECK(strlen(message) == 7);
  CHECK(message[8] == '#');
  CHECK(OptionSet(options, "spin.usec", "x", nullptr, 0) == OptionErr::kBadValue);
}

TEST_CASE("options that contradict each other", "[options]") {
  Options options = OptionsDefault();
  CHECK(Set(options, "ring.min", "64K").err == OptionErr::kOk);
  CHECK(Set(options, "ring.max", "4K").err == OptionErr::kOk);
  char message[kOptionMessageBytes] = "";
  CHECK(OptionsCheck(options, message, sizeof(message)) == OptionErr::kConflict);
  CHECK(Contains(message, "'ring.min' (64K)"));
}

TEST_CASE("environment: ours is taken, the rest is not, errors are told", "[options]") {
  Options options = OptionsDefault();
  const auto messages = LoadEnv(
      options, {"PATH=/bin", "POSTERN_SPIN_USEC=7", "POSTERN_DAEMON=/x", "POSTERN_RUNTIME_DIR=/y",
                "POSTERN_ATTACH=3:0:e", "POSTERN_DAEMON_IDLE_SEC=3", "POSTERN_SPIN_USECS=8",
                "POSTERN_STRICT=maybe", "POSTERN_"});
  CHECK(options.spin_usec == 7);
  CHECK(options.daemon_idle_sec == 3);
  REQUIRE(messages.size() == 2);
  CHECK(messages[0] == "unknown variable 'POSTERN_SPIN_USECS'; did you mean 'POSTERN_SPIN_USEC'?");
  CHECK(Contains(messages[1], "'strict'"));
  CHECK(LoadEnv(options, {}).empty());
  CHECK(OptionsLoadEnv(options, nullptr, Collect, nullptr) == 0);
}

TEST_CASE("profile: comments, blanks, line ends, errors with their line", "[options]") {
  Options options = OptionsDefault();
  CHECK(LoadProfile(options, "").empty());
  CHECK(LoadProfile(options, "# c\n\n \t\n  spin.usec =  9 # why\r\nlog.file=/a#b\nstrict=on")
            .empty());
  CHECK(options.spin_usec == 9);
  CHECK(std::string(options.log_file) == "/a#b");
  CHECK(options.strict == 1);
  const auto messages =
      LoadProfile(options, "strict=off\nspin.usec\n=5\n" + std::string(600, 'x') + "\nfoo=1");
  REQUIRE(messages.size() == 4);
  CHECK(Contains(messages[0], "x.conf:2: expected key=value"));
  CHECK(Contains(messages[1], "x.conf:3: "));
  CHECK(Contains(messages[2], "x.conf:4: "));
  CHECK(Contains(messages[3], "x.conf:5: unknown option 'foo'"));
  CHECK(options.strict == 0);
  CHECK(LoadProfile(options, std::string("a\0b=1\n", 6)).size() == 1);
}

TEST_CASE("the profiles that we ship are valid, and safe is the defaults", "[options]") {
  for (const char* name : {"safe", "latency", "throughput", "nginx", "redis"}) {
    INFO(name);
    std::ifstream file(std::string(POSTERN_SOURCE_DIR "/profiles/") + name + ".conf");
    REQUIRE(file.good());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    Options options = OptionsDefault();
    CHECK(LoadProfile(options, text).empty());
    char message[kOptionMessageBytes] = "";
    CHECK(OptionsCheck(options, message, sizeof(message)) == OptionErr::kOk);
    CHECK((options.given == 0) == (std::string(name) == "safe"));
  }
}

}  // namespace
}  // namespace postern
