// SPDX-License-Identifier: Apache-2.0
// Nothing here looks at the locale: a name is bytes, and the same bytes are a name everywhere.
#include "proto/names.hpp"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/text.hpp"

namespace shmb::names {
namespace {

constexpr std::string_view kAllowed = "names are 1 to 96 bytes of A-Z a-z 0-9 . _ - and do not begin with a dot";
constexpr std::uint64_t kMaxId = std::uint64_t{1} << 60;

// Short enough that the rule behind it survives the cut to kMaxSentence, even when every byte is escaped.
std::string shown(std::string_view bytes) {
  constexpr std::size_t kShown = 48;
  return quoted(bytes.substr(0, kShown)) + (bytes.size() > kShown ? "..." : "");
}

bool allowed(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

// A number in one spelling only: no sign, no leading zeros, no upper case. Two texts for one id would be two names.
template <class T>
std::optional<T> number(std::string_view text, int base) {
  if (text.empty() || (text.size() > 1 && text[0] == '0')) return std::nullopt;
  for (char c : text)
    if (!(c >= '0' && c <= '9') && !(base == 16 && c >= 'a' && c <= 'f')) return std::nullopt;
  T value{};
  auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (failure != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

template <class T>
std::string hex(T value) {
  char digits[16];
  auto [end, failure] = std::to_chars(digits, digits + sizeof digits, value, 16);
  return failure == std::errc{} ? std::string(digits, end) : std::string();
}

Result<void> check_group(std::string_view group) {
  if (!is_group_id(group)) return check(group, "group name");
  if (group_id(group)) return {};
  return error(Status::invalid,
               "group " + shown(group) + ": after '@' stands the decimal id of an unnamed group, for example '@17'");
}

// Takes a group's text in either form and writes it in one.
Result<std::string> group_of(std::string_view text) {
  SHMB_TRY_VOID(check_group(text));
  const auto id = group_id(text);
  return id ? id_text(*id) : std::string(text);
}

// Takes "UID:" off the front.
Result<std::optional<std::uint32_t>> take_owner(std::string_view& text, std::string_view whole) {
  const auto colon = text.find(':');
  if (colon == text.npos) return std::nullopt;
  auto uid = number<std::uint32_t>(text.substr(0, colon), 10);
  if (!uid)
    return error(Status::invalid,
                 shown(whole) + ": before ':' stands the owner's uid as a decimal number, for example '1000:train'");
  text.remove_prefix(colon + 1);
  return uid;
}

template <class T>
std::optional<T> take_hex(std::string_view& text, char terminator) {
  const auto end = text.find(terminator);
  if (end == text.npos) return std::nullopt;
  auto value = number<T>(text.substr(0, end), 16);
  text.remove_prefix(end + 1);
  return value;
}

}  // namespace

Result<void> check(std::string_view name, std::string_view what) {
  auto refuse = [&](const std::string& why) {
    return error(Status::invalid, std::string(what) + " " + shown(name) + ": " + why + "; " + std::string(kAllowed));
  };
  if (name.empty()) return refuse("is empty");
  if (name.size() > kMaxName) return refuse("is " + std::to_string(name.size()) + " bytes long");
  if (name[0] == '.') return refuse("begins with a dot");
  for (std::size_t i = 0; i < name.size(); ++i)
    if (!allowed(name[i]))
      return refuse("byte " + std::to_string(i + 1) + " (" + quoted(name.substr(i, 1)) + ") is not allowed");
  return {};
}

std::string id_text(std::uint64_t id) { return "@" + std::to_string(id); }

bool is_group_id(std::string_view group) { return group.starts_with('@') || group.starts_with('#'); }

std::optional<std::uint64_t> group_id(std::string_view group) {
  if (!is_group_id(group)) return std::nullopt;
  auto id = number<std::uint64_t>(group.substr(1), 10);
  if (!id || *id == 0) return std::nullopt;
  return id;
}

Result<Address> parse_group(std::string_view text) {
  Address address;
  std::string_view rest = text;
  SHMB_TRY(owner, take_owner(rest, text));
  address.owner_uid = owner;
  SHMB_TRY(group, group_of(rest));
  address.group = std::move(group);
  return address;
}

Result<Address> parse_region(std::string_view text) {
  Address address;
  std::string_view rest = text;
  SHMB_TRY(owner, take_owner(rest, text));
  address.owner_uid = owner;
  const auto slash = rest.find('/');
  if (slash == rest.npos && address.owner_uid)
    return error(Status::invalid, shown(text) + ": a uid goes with a group, as in UID:GROUP/NAME");
  if (slash != rest.npos) {
    SHMB_TRY(group, group_of(rest.substr(0, slash)));
    address.group = std::move(group);
    rest.remove_prefix(slash + 1);
  }
  SHMB_TRY_VOID(check(rest, "region name"));
  address.name = rest;
  return address;
}

std::string memfd_name(const Label& label) {
  return "shmb:" + hex(label.epoch) + "." + hex(label.id) + "." + hex(label.generation) + "." + hex(label.owner_uid) +
         ":" + label.group + "/" + label.region;
}

const char* write_memfd_name(MemfdName& out, const LabelView& label) {
  char* at = out.data();
  char* const end = out.data() + kMaxMemfdName;
  auto text = [&](std::string_view part) {
    at = std::copy_n(part.data(), std::min<std::size_t>(part.size(), static_cast<std::size_t>(end - at)), at);
  };
  auto digits = [&](std::uint64_t value) { at = std::to_chars(at, end, value, 16).ptr; };
  text("shmb:");
  for (std::uint64_t value : {label.epoch, label.id, std::uint64_t{label.generation}}) digits(value), text(".");
  digits(label.owner_uid);
  text(":");
  if (label.group.empty()) text("#"), digits(label.group_id);
  text(label.group);
  text("/");
  text(label.region);
  *at = '\0';
  return out.data();
}

std::optional<Label> parse_memfd_name(std::string_view name) {
  constexpr std::string_view kPrefix = "shmb:";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  auto epoch = take_hex<std::uint64_t>(name, '.');
  auto id = take_hex<std::uint64_t>(name, '.');
  auto generation = take_hex<std::uint32_t>(name, '.');
  auto owner = take_hex<std::uint32_t>(name, ':');
  if (!epoch || !id || *id >= kMaxId || !generation || !owner) return std::nullopt;
  const auto slash = name.find('/');
  if (slash == name.npos) return std::nullopt;
  std::string_view group = name.substr(0, slash), region = name.substr(slash + 1);
  if (group.starts_with('#')) {
    auto group_number = number<std::uint64_t>(group.substr(1), 16);
    if (!group_number || *group_number == 0 || *group_number >= kMaxId) return std::nullopt;
  } else if (!check(group, "")) {
    return std::nullopt;
  }
  if (!region.empty() && !check(region, "")) return std::nullopt;
  return Label{*epoch, *id, *generation, *owner, std::string(group), std::string(region)};
}

std::string format_token(const std::uint8_t (&token)[16]) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (std::uint8_t byte : token) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool parse_token(std::string_view text, std::uint8_t (&token)[16]) {
  if (text.size() != 32) return false;
  std::uint8_t bytes[16];
  for (std::size_t i = 0; i < 32; ++i) {
    const char c = text[i];
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    bytes[i / 2] = static_cast<std::uint8_t>(i % 2 == 0 ? digit << 4 : bytes[i / 2] | digit);
  }
  std::copy(std::begin(bytes), std::end(bytes), token);
  return true;
}

Result<GroupTicket> parse_group_variable(std::string_view text, std::string_view what) {
  // The token is a secret: a sentence about a bad value says what is wrong, never what stands there.
  const auto colon = text.rfind(':');
  GroupTicket ticket;
  if (colon == text.npos || !parse_token(text.substr(colon + 1), ticket.token))
    return error(
        Status::invalid,
        std::string(what) +
            " is not NAME:TOKEN with a token of 32 lower-case hex digits, as `shmbroker run` sets it: leave it "
            "out, start the program by `shmbroker run`, or let the program join the group by its name");
  const std::uint8_t none[16] = {};
  if (std::equal(std::begin(none), std::end(none), std::begin(ticket.token)))
    return error(Status::invalid, std::string(what) + " has a token of zeros, which admits to no group");
  auto group = group_of(text.substr(0, colon));
  if (!group) {
    group.error().sentence = std::string(what) + ": " + group.error().sentence;
    return std::unexpected(group.error());
  }
  ticket.name = std::move(*group);
  return ticket;
}

std::string format_group_variable(std::string_view name, const std::uint8_t (&token)[16]) {
  return std::string(name) + ":" + format_token(token);
}

}  // namespace shmb::names
