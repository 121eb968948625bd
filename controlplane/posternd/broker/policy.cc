// policy.cc - reading rules, and the first that fits.
// SPDX-License-Identifier: Apache-2.0
#include "policy.h"

#include <grp.h>
#include <pwd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>

#include "base/ip_address.h"
#include "base/schema/options.h"
#include "wire/clc/clc.h"

namespace postern::daemon {

using nlohmann::json;

// Throws std::runtime_error with what is wrong; Parse() catches it.
struct PolicyReader {
  [[noreturn]] static void Fail(const std::string& what) { throw std::runtime_error(what); }

  static void OnlyKeys(const json& object, const char* where,
                       std::initializer_list<const char*> known) {
    if (!object.is_object()) Fail(std::string(where) + " is not an object");
    for (const auto& [key, value] : object.items()) {
      bool found = false;
      for (const char* name : known) found = found || key == name;
      if (!found) Fail("unknown key \"" + key + "\" in " + where);
    }
  }

  static bool Verdict(const json& value, const char* where) {
    if (value == "allow") return true;
    if (value == "deny") return false;
    Fail(std::string(where) + " is neither \"allow\" nor \"deny\"");
  }

  static uint32_t Number(const json& value, const char* where) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > UINT32_MAX)
      Fail(std::string(where) + " is not a number");
    return value.get<uint32_t>();
  }

  static uid_t User(const json& value) {
    if (!value.is_string()) return Number(value, "user");
    const passwd* entry = getpwnam(value.get<std::string>().c_str());
    if (entry == nullptr) Fail("there is no user " + value.dump());
    return entry->pw_uid;
  }

  static gid_t Group(const json& value) {
    if (!value.is_string()) return Number(value, "group");
    const group* entry = getgrnam(value.get<std::string>().c_str());
    if (entry == nullptr) Fail("there is no group " + value.dump());
    return entry->gr_gid;
  }

  static std::string String(const json& value, const char* where) {
    if (!value.is_string()) Fail(std::string(where) + " is not a string");
    return value.get<std::string>();
  }

  static Policy::Match ReadMatch(const json& object, const char* where) {
    OnlyKeys(object, where, {"user", "group", "cgroup"});
    return ReadWho(object);
  }

  static Policy::Match ReadWho(const json& object) {
    Policy::Match match;
    if (object.contains("user")) match.uid = User(object["user"]);
    if (object.contains("group")) match.gid = Group(object["group"]);
    if (object.contains("cgroup")) match.cgroup = String(object["cgroup"], "cgroup");
    return match;
  }

  static Policy::Rule ReadRule(const json& object) {
    OnlyKeys(object, "a rule", {"from", "to", "ports", "verdict"});
    Policy::Rule rule;
    if (object.contains("from")) rule.from = ReadMatch(object["from"], "from");
    if (object.contains("to")) rule.to = ReadMatch(object["to"], "to");
    if (object.contains("ports")) {
      rule.ports = String(object["ports"], "ports");
      if (!PortListIsValid(rule.ports.c_str())) Fail("ports \"" + rule.ports + "\" are no ports");
    }
    if (!object.contains("verdict")) Fail("a rule has no verdict");
    rule.allow = Verdict(object["verdict"], "a rule's verdict");
    return rule;
  }

  static Policy::ViRule ReadViRule(const json& object) {
    OnlyKeys(object, "an entry of vis", {"interface", "user", "group", "cgroup", "verdict"});
    Policy::ViRule rule;
    rule.who = ReadWho(object);
    if (object.contains("interface")) rule.interface = String(object["interface"], "interface");
    if (!object.contains("verdict")) Fail("an entry of vis has no verdict");
    rule.allow = Verdict(object["verdict"], "the verdict of an entry of vis");
    return rule;
  }

  static std::vector<Policy::ViRule> ViRules(const json& array) {
    if (!array.is_array()) Fail("vis is not an array");
    std::vector<Policy::ViRule> rules;
    for (const json& rule : array) rules.push_back(ReadViRule(rule));
    return rules;
  }

  static std::vector<std::string> Ueids(const json& value) {
    if (!value.is_array() || value.empty() || value.size() > PSTN_HOST_UEIDS)
      Fail("ueids is not an array of one to four names");
    std::vector<std::string> names;
    for (const json& name : value) {
      ClcEid eid;
      names.push_back(String(name, "ueids"));
      if (!ClcUeidFromText(names.back().c_str(), eid))
        Fail("ueids: " + name.dump() + " is not made of up to 32 of A-Z 0-9 . -");
    }
    return names;
  }

  // "10.96.0.0/12", "fd00::1"
  static pstn_addr Prefix(const json& value) {
    const std::string text = String(value, "addresses");
    const size_t slash = text.find('/');
    const std::string ip = text.substr(0, slash);
    IpAddress address{};
    if (!IpFromText(ip.c_str(), address)) Fail("addresses: " + value.dump() + " is no address");
    // "::ffff:10.0.0.0/104" counts its bits as IPv6.
    const unsigned most = ip.find(':') == std::string::npos ? 32 : 128;
    unsigned bits = most;
    if (slash != std::string::npos) {
      const std::string length = text.substr(slash + 1);
      const bool digits = !length.empty() && length.size() <= 3 &&
                          length.find_first_not_of("0123456789") == std::string::npos;
      bits = digits ? static_cast<unsigned>(std::stoul(length)) : most + 1;
    }
    if (bits > most) Fail("addresses: " + value.dump() + " has no such prefix");
    return NameOf(address, static_cast<uint16_t>(128 - most + bits));
  }

  static SameHost Mode(const json& value) {
    const std::string text = String(value, "same_host");
    if (text == "on") return SameHost::kOn;
    if (text == "unfiltered") return SameHost::kUnfiltered;
    if (text != "off") Fail("same_host is not on, unfiltered or off");
    return SameHost::kOff;
  }

  static Policy Read(const json& object) {
    OnlyKeys(object, "the policy",
             {"default", "rules", "links", "listeners", "daemons", "buffers", "filters", "vi_asks",
              "vis", "ueids", "addresses", "processes", "stacks", "descriptors", "same_host"});
    Policy policy;
    if (object.contains("same_host")) policy.same_host = Mode(object["same_host"]);
    if (object.contains("default")) policy.default_ = Verdict(object["default"], "default");
    if (object.contains("links")) policy.links_max = Number(object["links"], "links");
    if (object.contains("listeners"))
      policy.listeners_max = Number(object["listeners"], "listeners");
    if (object.contains("daemons")) policy.daemons_max = Number(object["daemons"], "daemons");
    if (object.contains("buffers")) policy.buffers_max = Number(object["buffers"], "buffers");
    if (object.contains("filters")) policy.filters_max = Number(object["filters"], "filters");
    if (object.contains("processes"))
      policy.processes_max = Number(object["processes"], "processes");
    if (object.contains("stacks")) policy.stacks_max = Number(object["stacks"], "stacks");
    if (object.contains("descriptors"))
      policy.descriptors_max = Number(object["descriptors"], "descriptors");
    if (object.contains("vi_asks")) policy.vi_asks_max = Number(object["vi_asks"], "vi_asks");
    if (object.contains("vis")) policy.vi_rules_ = ViRules(object["vis"]);
    if (object.contains("ueids")) policy.ueids = Ueids(object["ueids"]);
    if (object.contains("addresses")) {
      if (!object["addresses"].is_array()) Fail("addresses is not an array");
      for (const json& text : object["addresses"]) policy.addresses.push_back(Prefix(text));
    }
    if (!object.contains("rules")) return policy;
    if (!object["rules"].is_array()) Fail("rules is not an array");
    for (const json& rule : object["rules"]) policy.rules_.push_back(ReadRule(rule));
    return policy;
  }
};

std::optional<Policy> Policy::Parse(const std::string& text, std::string& error) {
  try {
    return PolicyReader::Read(json::parse(text, nullptr, true, true));
  } catch (const std::exception& e) {
    error = e.what();
    return std::nullopt;
  }
}

std::optional<Policy> Policy::Load(const std::string& path, std::string& error) {
  std::ifstream file(path);
  if (!file && errno == ENOENT) return Policy();
  std::stringstream text;
  text << file.rdbuf();
  if (!file) {
    error = path + ": " + strerror(errno);
    return std::nullopt;
  }
  std::optional<Policy> policy = Parse(text.str(), error);
  if (!policy) error = path + ": " + error;
  return policy;
}

bool Policy::Match::Fits(const Who& who) const {
  return (!uid || *uid == who.uid) && (!gid || *gid == who.gid) &&
         who.cgroup.compare(0, cgroup.size(), cgroup) == 0;
}

bool Policy::AllowsVi(const Who& who, const std::string& interface) const {
  if (!vi_rules_) return true;
  for (const ViRule& rule : *vi_rules_) {
    if (rule.who.Fits(who) && (rule.interface.empty() || rule.interface == interface))
      return rule.allow;
  }
  return false;
}

bool Policy::Allows(const Who& from, const Who& to, uint16_t port) const {
  if (same_host == SameHost::kOff) return false;
  for (const Rule& rule : rules_) {
    if (!rule.from.Fits(from) || !rule.to.Fits(to)) continue;
    if (rule.ports.empty() || PortListHas(rule.ports.c_str(), port)) return rule.allow;
  }
  return default_;
}

}  // namespace postern::daemon
