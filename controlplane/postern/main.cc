// main.cc - the wrapper: `postern [options] COMMAND ARGS...` runs a program accelerated.
// SPDX-License-Identifier: Apache-2.0
//
// It checks all it is given before anything is started, turns options into POSTERN_* variables,
// puts libpostern.so in front of LD_PRELOAD, sees to it that a posternd runs, and becomes the
// command. Nothing of it stays behind.
#include <getopt.h>
#include <net/if.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "banner.h"
#include "base/log/log_sink.h"
#include "base/schema/options.h"
#include "daemon.h"
#include "help.h"
#include "here.h"
#include "say.h"
#include "target.h"
#include "user_dir.h"

namespace postern::wrapper {
namespace {

namespace fs = std::filesystem;

constexpr char kDefaultProfile[] = "safe";
constexpr char kHostProfiles[] = "/etc/postern/profiles";
constexpr uintmax_t kProfileBytesMax = uintmax_t{64} * 1024;

struct CommandLine {
  std::string profile;                // empty: not given
  std::vector<std::string> settings;  // of -o, in order
  bool is_strict = false;
  bool is_verbose = false;
  char** command = nullptr;  // null-terminated
};

[[noreturn]] void Print(const std::string& text) {
  fputs(text.c_str(), stdout);
  exit(fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
}

CommandLine ParseCommandLine(int argc, char** argv) {
  enum LongOnly : int { kStrict = 256, kVersion, kDumpTuning, kDumpLine };
  static const option kLong[] = {
      {"profile", required_argument, nullptr, 'p'},
      {"option", required_argument, nullptr, 'o'},
      {"strict", no_argument, nullptr, kStrict},
      {"verbose", no_argument, nullptr, 'v'},
      {"version", no_argument, nullptr, kVersion},
      {"help", no_argument, nullptr, 'h'},
      {"dump-tuning-md", no_argument, nullptr, kDumpTuning},
      {"dump-command-line", no_argument, nullptr, kDumpLine},
      {nullptr, 0, nullptr, 0},
  };
  CommandLine line;
  // '+': stop at the first word that is no option.
  for (int c = 0; (c = getopt_long(argc, argv, "+p:o:vh", kLong, nullptr)) != -1;) {
    switch (c) {
      case 'p':
        line.profile = optarg;
        break;
      case 'o':
        line.settings.emplace_back(optarg);
        break;
      case kStrict:
        line.is_strict = true;
        break;
      case 'v':
        line.is_verbose = true;
        break;
      case 'h':
        Print(HelpText(kLong));
      case kVersion:
        Print("postern " POSTERN_VERSION "\n");
      case kDumpTuning:
        Print(TuningText());
      case kDumpLine:
        Print(CommandLineText(kLong));
      default:
        Die(kExitUsage, UsageText());  // getopt_long has said what is wrong
    }
  }
  if (optind >= argc) Die(kExitUsage, "no command given\n" + UsageText());
  line.command = argv + optind;
  return line;
}

// Where our own files are: beside the wrapper in the build tree, around it when installed.
fs::path OwnPath() {
  std::error_code error;
  fs::path path = fs::read_symlink("/proc/self/exe", error);
  if (!error) return path;
  // Without /proc: as it was executed.
  return fs::canonical(reinterpret_cast<const char*>(getauxval(AT_EXECFN)));
}

class Siblings {
 public:
  Siblings() : dir_(OwnPath().parent_path()) {}

  // The first that exists; empty when neither does. By access(), since a filter (seccomp) may know
  // no newfstatat(), which exists() needs.
  [[nodiscard]] fs::path Find(const char* built, const char* installed) const {
    for (const char* relative : {built, installed}) {
      fs::path path = (dir_ / relative).lexically_normal();
      if (access(path.c_str(), F_OK) == 0) return path;
    }
    return {};
  }
  [[nodiscard]] bool IsBuildTree() const {
    std::error_code error;
    return fs::exists(dir_ / "build.ninja", error);
  }

 private:
  fs::path dir_;
};

// Where profiles are, the host's first. One that is not there is left out, and what is built but
// not installed has nothing of the host's.
std::vector<fs::path> ProfileDirs(const Siblings& siblings) {
  std::vector<fs::path> dirs;
  std::error_code error;
  if (!siblings.IsBuildTree() && fs::is_directory(kHostProfiles, error))
    dirs.emplace_back(kHostProfiles);
  const fs::path own = siblings.Find("profiles", "../share/postern/profiles");
  if (!own.empty()) dirs.push_back(own);
  return dirs;
}

std::set<std::string> ProfileNames(const Siblings& siblings) {
  std::set<std::string> names;
  std::error_code ignored;
  for (const fs::path& dir : ProfileDirs(siblings)) {
    for (const auto& entry : fs::directory_iterator(dir, ignored)) {
      if (entry.path().extension() == ".conf") names.insert(entry.path().stem().string());
    }
  }
  return names;
}

// Empty: there is none of that name.
fs::path FindProfile(const std::string& name, const Siblings& siblings) {
  std::error_code error;
  for (const fs::path& dir : ProfileDirs(siblings)) {
    fs::path path = dir / (name + ".conf");
    if (fs::exists(path, error)) return path;
  }
  return {};
}

fs::path ProfilePath(const std::string& name, const Siblings& siblings) {
  if (name.find('/') != std::string::npos) return name;
  fs::path path = FindProfile(name, siblings);
  if (path.empty()) {
    std::string names;
    for (const std::string& each : ProfileNames(siblings)) names += " " + each;
    Die(kExitUsage, "no profile '" + name + "'; there are:" + names);
  }
  return path;
}

// Reports each error; the caller dies when there was one.
void ReportError(void* /*context*/, const char* message) { Warn(message); }

void LoadProfile(Options& options, const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error) || fs::file_size(path, error) > kProfileBytesMax) {
    Die(kExitUsage, "profile " + path.string() + ": not a file of at most 64 KiB");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) Die(kExitUsage, "profile " + path.string() + ": " + ErrorText(errno));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string name = path.filename().string();
  if (OptionsLoadProfile(options, name.c_str(), text.data(), text.size(), ReportError, nullptr) !=
      0) {
    exit(kExitUsage);
  }
}

void SetOrDie(Options& options, const std::string& key, const std::string& value) {
  char message[kOptionMessageBytes];
  if (OptionSet(options, key.c_str(), value.c_str(), message, sizeof(message)) != OptionErr::kOk) {
    Die(kExitUsage, message);
  }
}

void LoadSettings(Options& options, const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos || equals == 0) {
      Die(kExitUsage, "-o wants key=value, got '" + setting + "'");
    }
    SetOrDie(options, setting.substr(0, equals), setting.substr(equals + 1));
  }
}

// A relative path would be another file after chdir().
void FixLogFile(Options& options) {
  const std::string file = options.log_file;
  if (file.empty() || file[0] == '/' || file == kLogToJournal || file == kLogToStderr) return;
  std::error_code error;
  const fs::path whole = fs::absolute(file, error);
  if (!error) SetOrDie(options, "log.file", whole.string());
}

Options CollectOptions(const CommandLine& line, const Siblings& siblings) {
  Options options = OptionsDefault();
  // A tree without profiles still works: the default one holds nothing but defaults.
  if (!line.profile.empty()) {
    LoadProfile(options, ProfilePath(line.profile, siblings));
  } else if (const fs::path path = FindProfile(kDefaultProfile, siblings); !path.empty()) {
    LoadProfile(options, path);
  }
  if (OptionsLoadEnv(options, environ, ReportError, nullptr) != 0) exit(kExitUsage);
  LoadSettings(options, line.settings);
  if (line.is_strict) SetOrDie(options, "strict", "on");
  const bool is_quiet = options.log_level < static_cast<int64_t>(LogLevel::kInfo);
  if (line.is_verbose && is_quiet) SetOrDie(options, "log.level", "info");
  FixLogFile(options);
  char message[kOptionMessageBytes];
  if (OptionsCheck(options, message, sizeof(message)) != OptionErr::kOk) Die(kExitUsage, message);
  return options;
}

void SetEnv(const std::string& name, const std::string& value) {
  if (setenv(name.c_str(), value.c_str(), 1) != 0) {
    Die(kExitOurselves, "cannot set " + name + ": " + ErrorText(errno));
  }
}

// Whatever was set by any means, so that the command and its children see the same.
void ExportOptions(const Options& options) {
  for (size_t i = 0; i < kOptionCount; ++i) {
    const OptionDesc& desc = OptionAt(i);
    if (!OptionGiven(options, desc)) continue;
    char name[kOptionMessageBytes];
    char value[kOptionMessageBytes];
    SetEnv(OptionEnvName(desc, name, sizeof(name)),
           OptionFormat(options, desc, value, sizeof(value)));
  }
}

// By $LIB, if that leads to it: programs of 32 bits, and of other C libraries, then find no library
// that is not theirs, of which their loader would complain (preload/others).
std::string PreloadName(const std::string& library) {
#if defined(POSTERN_DST_LIB)
  const fs::path abi = fs::path(library).parent_path() / "abi";
  std::error_code error;
  if (fs::equivalent(abi / POSTERN_DST_LIB / "libpostern.so", library, error))
    return (abi / "$LIB" / "libpostern.so").string();
#endif
  return library;
}

void ExportPreload(const std::string& file) {
  const std::string library = PreloadName(file);
  if (library.find_first_of(" :") != std::string::npos) {
    Die(kExitOurselves, "LD_PRELOAD cannot hold a path with a blank or colon: " + library);
  }
  const char* existing = getenv("LD_PRELOAD");
  std::string preload = library;
  if (existing != nullptr && *existing != '\0') {
    // Not twice when one wrapper runs another.
    const std::string list = std::string(existing) + ":";
    if (list.rfind(library + ":", 0) == 0) return;
    preload += std::string(":") + existing;
  }
  SetEnv("LD_PRELOAD", preload);
}

bool IsLoopback(const std::string& name) {
  ifreq request{};
  name.copy(request.ifr_name, sizeof request.ifr_name - 1);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool is =
      fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_LOOPBACK) != 0;
  if (fd >= 0) close(fd);
  return is;
}

// Not an error: the interface may come, and until then the kernel serves.
void CheckInterfaces(const std::string& names) {
  std::istringstream list(names);
  const std::string consequence = " (option vi); connections will use the kernel";
  for (std::string name; std::getline(list, name, ',');) {
    if (name.empty()) continue;
    if (if_nametoindex(name.c_str()) == 0)
      Warn("warning: there is no interface '" + name + "' here" + consequence);
    else if (IsLoopback(name))
      Warn("warning: '" + name + "' leads to no other host, and can have no VI" + consequence);
  }
}

// Everything around the command: directory, daemon. Only the runtime directory is indispensable.
struct Surroundings {
  std::string runtime_dir;
  std::string why_off;   // empty: the library is preloaded, and has a posternd
  bool is_said = false;  // that it is off, and why
};

Surroundings Prepare(const Options& options, const Siblings& siblings) {
  const std::string library = siblings.Find("libpostern.so", "../lib/postern/libpostern.so");
  if (library.empty())
    Die(kExitOurselves, "libpostern.so is neither built nor installed beside postern");
  std::string why_not = WhyNotHere(library);
  const std::string runtime_dir = why_not.empty() ? RuntimeDir(why_not) : "";
  if (!why_not.empty()) return {runtime_dir, why_not};  // the command runs as it would without us
  SetEnv("POSTERN_RUNTIME_DIR", runtime_dir);
  ExportOptions(options);
  CheckInterfaces(options.vi);
  const std::string posternd = siblings.Find("posternd", "../libexec/postern/posternd");
  if (!posternd.empty()) SetEnv("POSTERN_DAEMON", posternd);
  std::string problem;
  if (options.accel != 0 && options.daemon_spawn != 0) {
    problem = posternd.empty() ? "posternd is neither built nor installed beside postern"
                               : EnsureDaemon(posternd, runtime_dir);
    const bool is_limit = problem == kNoProcessLeft || problem == kReadOnly;
    if (is_limit) return {runtime_dir, problem};
    if (!problem.empty()) Warn("warning: " + problem + "; connections will use the kernel");
  }
  ExportPreload(library);
  if (options.accel == 0) return {runtime_dir, "accel=off"};
  return {runtime_dir, problem, !problem.empty()};
}

// On request (-v), and where strict is asked for and can't be had.
void Announce(const Options& options, const Surroundings& around, bool is_verbose) {
  if (is_verbose) return Warn(BannerText(options, around.runtime_dir, around.why_off));
  const bool is_wanted = options.strict != 0 && options.accel != 0;
  if (is_wanted && !around.why_off.empty() && !around.is_said)
    Warn("warning: strict can't be had: " + around.why_off + "; the kernel serves all its sockets");
}

[[noreturn]] void Run(char** command) {
  execvp(command[0], command);
  const int error = errno;
  Die(error == ENOENT ? kExitNotFound : kExitNotExecutable,
      std::string(command[0]) + ": " + ErrorText(error));
}

int Main(int argc, char** argv) {
  const CommandLine line = ParseCommandLine(argc, argv);
  const Siblings siblings;
  const Options options = CollectOptions(line, siblings);
  const std::string program = FindProgram(line.command[0]);
  // No daemon for a command that is not there; execvp finds the right words.
  if (!program.empty()) {
    Surroundings around = Prepare(options, siblings);
    if (const std::string why = WhyNotPreloadable(program); !why.empty() && options.accel != 0)
      around.why_off = why, around.is_said = false;
    Announce(options, around, line.is_verbose);
  }
  Run(line.command);
}

}  // namespace
}  // namespace postern::wrapper

int main(int argc, char** argv) {
  try {
    return postern::wrapper::Main(argc, argv);
  } catch (const std::exception& error) {
    postern::wrapper::Die(postern::wrapper::kExitOurselves, error.what());
  }
}
