// SPDX-License-Identifier: Apache-2.0
// Which texts are a name, an address, a label, a token; and that a sentence about bad bytes can be printed on a
// terminal.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/fd.hpp"
#include "proto/names.hpp"
#include "proto/refusal.hpp"

namespace {

using namespace shmb;
using namespace shmb::names;
using namespace std::string_literals;

std::string sentence_of(const Result<void>& result) { return result ? "" : result.error().sentence; }

bool printable(const std::string& text) {
  return std::ranges::all_of(text, [](unsigned char c) { return c >= 0x20 && c < 0x7f; });
}

TEST_CASE("exactly the names of 1 to 96 bytes of the alphabet without a leading dot are names") {
  for (const std::string& name : {"a"s, "A-b_c.9"s, "0"s, "-"s, "_"s, "a."s, "a..b"s, std::string(96, 'x')}) {
    CAPTURE(name);
    CHECK(check(name, "region name"));
  }
  for (const std::string& name : std::initializer_list<std::string>{
           ""s, "."s, "..", ".a", "a/b", "/", "a b", "a\0b"s, "\0"s, "\x1b[31mred", "a\n", "naïve", "a:b", "#1", "a%b",
           "a\\b", "a'b", std::string(97, 'x'), std::string(5000, '\x01')}) {
    CAPTURE(name);
    CHECK_FALSE(check(name, "region name"));
  }
  for (int c = 0; c < 256; ++c) {
    const bool expected = std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
    CHECK(check("x"s + static_cast<char>(c), "name").has_value() == (expected && c < 128));
  }
}

TEST_CASE("a refused name is quoted safely and the sentence says what is allowed, even after the cut to the wire") {
  for (const std::string& name : {"evil\x1b[2J\x07name"s, "nul\0byte"s, "tab\t\r\n"s, "\xff\xfe\x80"s,
                                  std::string(5000, '\x1b'), "quote'; rm -rf"s}) {
    auto refused = check(name, "group name");
    REQUIRE_FALSE(refused);
    const std::string& sentence = refused.error().sentence;
    CAPTURE(sentence);
    CHECK(refused.error().status == Status::invalid);
    CHECK(sentence.starts_with("group name "));
    CHECK(printable(sentence));
    CHECK(sentence.size() <= wire::kMaxSentence);
    CHECK(sentence.find("1 to 96 bytes of A-Z a-z 0-9 . _ -") != std::string::npos);
  }
  CHECK(sentence_of(check("a/b", "region name")) ==
        "region name 'a/b': byte 2 ('/') is not allowed; names are 1 to 96 bytes of A-Z a-z 0-9 . _ - and do not begin "
        "with a dot");
  CHECK(sentence_of(check("", "region name")).starts_with("region name '': is empty"));
  CHECK(sentence_of(check(std::string(97, 'x'), "n")).find("is 97 bytes long") != std::string::npos);
  CHECK(sentence_of(check(".x", "n")).find("begins with a dot") != std::string::npos);
}

TEST_CASE("addresses of regions") {
  struct Row {
    const char* text;
    std::optional<std::uint32_t> uid;
    const char *group, *name;
  };
  for (const Row& row : {Row{"kv", {}, "", "kv"},
                         {"train/kv", {}, "train", "kv"},
                         {"1000:train/kv", 1000, "train", "kv"},
                         {"0:t/k", 0, "t", "k"},
                         {"@17/kv", {}, "@17", "kv"},
                         {"4294967295:@1/kv", 4294967295u, "@1", "kv"},
                         // The older form is the same group, so it reads as the same text.
                         {"#17/kv", {}, "@17", "kv"},
                         {"4294967295:#1/kv", 4294967295u, "@1", "kv"}}) {
    CAPTURE(row.text);
    auto address = parse_region(row.text);
    REQUIRE(address);
    CHECK(address->owner_uid == row.uid);
    CHECK(address->group == row.group);
    CHECK(address->name == row.name);
  }
  for (const char* text : {"",
                           "/",
                           "a/",
                           "/b",
                           "a/b/c",
                           ":a/b",
                           "x:a/b",
                           "-1:a/b",
                           "01:a/b",
                           "4294967296:a/b",
                           "1000:kv",
                           "1000:",
                           "#/kv",
                           "#x/kv",
                           "#0/kv",
                           "#017/kv",
                           "#18446744073709551616/kv",
                           "#17",
                           "@/kv",
                           "@x/kv",
                           "@0/kv",
                           "@017/kv",
                           "@18446744073709551616/kv",
                           "@17",
                           "@#17/kv",
                           "a b",
                           "../etc",
                           "a/.b",
                           "1:2:a/b"}) {
    CAPTURE(text);
    auto address = parse_region(text);
    REQUIRE_FALSE(address);
    CHECK(address.error().status == Status::invalid);
    CHECK(printable(address.error().sentence));
    CHECK(address.error().sentence.size() > 20);
  }
}

TEST_CASE("addresses of groups") {
  CHECK(parse_group("train")->group == "train");
  CHECK(parse_group("1000:train")->owner_uid == 1000u);
  for (const char* text : {"@17", "#17", "1000:@17", "1000:#17"}) CHECK(parse_group(text)->group == "@17");
  for (const char* text : {"", "#", "@", "a/b", "1000:", ":a", "#1a", "@1a", "b:a"}) CHECK_FALSE(parse_group(text));
  CHECK(id_text(17) == "@17");
  for (const std::string mark : {"@", "#"}) {
    CHECK(group_id(mark + "17") == 17u);
    CHECK(group_id(mark + "18446744073709551615") == UINT64_MAX);
    for (const char* text : {"", "0", "-1", "+1", " 1", "1 ", "01", "18446744073709551616", "@1", "#1"})
      CHECK_FALSE(group_id(mark + text));
  }
  CHECK_FALSE(group_id("17"));
}

TEST_CASE("an id stands in a command line as it is: no shell takes it for a comment, a pattern or a variable") {
  const std::string id = id_text(17);
  CHECK(id.find_first_of("#$&*()[]{};<>?|~`'\"\\!=^% \t\n") == std::string::npos);
  CHECK_FALSE(check(id, "group name"));  // and it is no name
}

TEST_CASE("a memfd's label says what the region is, reads back the same, and the longest one is 249 bytes") {
  const Label plain{0x5eed0123456789ab, 0x1d2, 4, 1000, "train", "kv"};
  CHECK(memfd_name(plain) == "shmb:5eed0123456789ab.1d2.4.3e8:train/kv");
  const Label most{UINT64_MAX, (std::uint64_t{1} << 60) - 1, UINT32_MAX,
                   UINT32_MAX, std::string(96, 'g'),         std::string(96, 'r')};
  CHECK(memfd_name(most).size() == kMaxMemfdName);
  for (const Label& label :
       {plain, most, Label{0, 0, 0, 0, "g", ""}, Label{1, 2, 3, 0, "#1f", ""}, Label{1, 2, 3, 4, "#1f", "r.s-t_u"}}) {
    const std::string name = memfd_name(label);
    CAPTURE(name);
    auto back = parse_memfd_name(name);
    REQUIRE(back);
    CHECK(back->epoch == label.epoch);
    CHECK(back->id == label.id);
    CHECK(back->generation == label.generation);
    CHECK(back->owner_uid == label.owner_uid);
    CHECK(back->group == label.group);
    CHECK(back->region == label.region);
  }
}

TEST_CASE("the kernel takes the longest label, and no more") {
  const Label most{UINT64_MAX, (std::uint64_t{1} << 60) - 1, UINT32_MAX,
                   UINT32_MAX, std::string(96, 'g'),         std::string(96, 'r')};
  Fd fd = Fd::adopt(memfd_create(memfd_name(most).c_str(), MFD_CLOEXEC));
  REQUIRE(fd);
  const auto link = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd.get())).string();
  CHECK(link.find(memfd_name(most)) != std::string::npos);
  CHECK_FALSE(Fd::adopt(memfd_create((memfd_name(most) + "x").c_str(), MFD_CLOEXEC)));
}

TEST_CASE("a label in any other spelling is not ours") {
  const std::string good = "shmb:5eed.1d2.4.3e8:train/kv";
  REQUIRE(parse_memfd_name(good));
  for (const char* name : {"",
                           "shmb:",
                           "shmb",
                           "memfd:shmb:5eed.1d2.4.3e8:train/kv",
                           "shmb:05eed.1d2.4.3e8:train/kv",
                           "shmb:5EED.1d2.4.3e8:train/kv",
                           "shmb:5eed.1d2.4:train/kv",
                           "shmb:5eed.1d2.4.3e8.1:train/kv",
                           "shmb:5eed.1d2.4.3e8:train",
                           "shmb:5eed.1d2.4.3e8:/kv",
                           "shmb:5eed.1d2.4.3e8:train/a/b",
                           "shmb:5eed.1d2.4.3e8:train/.kv",
                           "shmb:5eed.1d2.4.3e8:tr ain/kv",
                           "shmb:5eed..4.3e8:train/kv",
                           "shmb:0x5eed.1d2.4.3e8:train/kv",
                           "shmb:-1.1d2.4.3e8:train/kv",
                           "shmb:10000000000000000.1.1.1:t/k",
                           "shmb:1.1000000000000000.1.1:t/k",
                           "shmb:1.1.100000000.1:t/k",
                           "shmb:1.1.1.100000000:t/k",
                           "shmb:5eed.1d2.4.3e8:#/kv",
                           "shmb:5eed.1d2.4.3e8:#0/kv",
                           "shmb:5eed.1d2.4.3e8:#G/kv",
                           "shmb:5eed.1d2.4.3e8:train/kv (deleted)"}) {
    CAPTURE(name);
    CHECK_FALSE(parse_memfd_name(name));
  }
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string changed = good;
    changed[i] = '\0';
    CHECK_FALSE(parse_memfd_name(changed));
  }
}

TEST_CASE("tokens are 32 lower-case hex digits, both ways, and a bad one changes nothing") {
  std::uint8_t token[16], back[16] = {};
  for (std::uint8_t i = 0; i < 16; ++i) token[i] = static_cast<std::uint8_t>(i * 17);
  CHECK(format_token(token) == "00112233445566778899aabbccddeeff");
  REQUIRE(parse_token(format_token(token), back));
  CHECK(std::equal(std::begin(token), std::end(token), back));
  for (const char* text :
       {"", "0011", "00112233445566778899aabbccddeef", "00112233445566778899aabbccddeeff0",
        "00112233445566778899AABBCCDDEEFF", "00112233445566778899aabbccddeefg", "0x112233445566778899aabbccddeeff"}) {
    std::uint8_t untouched[16] = {7};
    CHECK_FALSE(parse_token(text, untouched));
    CHECK(untouched[0] == 7);
  }
}

TEST_CASE("SHMBROKER_GROUP goes both ways, and a bad value is never repeated: half of it is a secret") {
  std::uint8_t token[16] = {0xab};
  for (const char* group : {"train", "@17"}) {
    auto ticket = parse_group_variable(format_group_variable(group, token));
    REQUIRE(ticket);
    CHECK(ticket->name == group);
    CHECK(ticket->token[0] == 0xab);
  }
  for (const char* text : {"", ":", "train", "train:", "train:123", "tr/ain:ab000000000000000000000000000000",
                           ":ab000000000000000000000000000000", "train:secretsecretsecretsecretsecretse"}) {
    auto ticket = parse_group_variable(text);
    REQUIRE_FALSE(ticket);
    CHECK(ticket.error().sentence.starts_with("SHMBROKER_GROUP"));
    CHECK(ticket.error().sentence.find("secret") == std::string::npos);
    CHECK(ticket.error().sentence.find("ab00000000") == std::string::npos);
  }
}

}  // namespace
