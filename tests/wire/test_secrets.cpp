// SPDX-License-Identifier: Apache-2.0
// Tickets, group tokens and fork secrets are 128 bits that cannot be guessed: whatever is not exactly one of them, in
// time and unused, gets the same answer as nonsense.
#include <doctest/doctest.h>
#include <unistd.h>

#include <random>
#include <set>

#include "tests/support/wire.hpp"

namespace wire_test {
namespace {

using Token = std::array<std::uint8_t, 16>;

Token token_of(const std::uint8_t (&bytes)[16]) {
  Token token;
  std::memcpy(token.data(), bytes, sizeof bytes);
  return token;
}

shmbw_attach by_ticket(const Token& token) {
  shmbw_attach attach{};
  attach.by = SHMBW_ATTACH_BY_TICKET;
  attach.rights = kRights;
  std::memcpy(attach.ticket, token.data(), token.size());
  return attach;
}

// All guesses in batches; the sentences that came, and how many succeeded.
std::pair<std::set<std::string>, std::size_t> guess(RawClient& client, const std::vector<Token>& tokens) {
  std::set<std::string> sentences;
  std::size_t hits = 0;
  std::vector<shmbw_attach> wishes;
  for (std::size_t from = 0; from < tokens.size(); from += wishes.size()) {
    wishes.clear();
    for (std::size_t i = from; i < tokens.size() && wishes.size() < SHMBW_MAX_BATCH; ++i)
      wishes.push_back(by_ticket(tokens[i]));
    RawPacket reply = client.call_batch(SHMBW_OP_ATTACH, std::span<const shmbw_attach>(wishes));
    REQUIRE_MESSAGE(reply.ok(), reply.sentence());
    std::string_view rest = reply.rest();
    auto front = reply.fixed<shmbw_batch>();
    std::size_t at = std::size_t{front.count} * front.element_size;
    for (std::size_t i = 0; i < wishes.size(); ++i) {
      auto outcome = reply.element<shmbw_outcome>(i);
      hits += outcome.status == 0 ? 1 : 0;
      // The status and the whole detail, byte by byte.
      if (outcome.status != 0)
        sentences.insert(std::to_string(outcome.status) + " " + std::string(rest.substr(at, outcome.detail_len)));
      at += outcome.detail_len;
    }
  }
  return {sentences, hits};
}

shmbw_ticket_create_reply draw(RawClient& client, const shmbw_region_ref& region, std::uint32_t uses,
                               std::int64_t life) {
  RawPacket reply = client.call(SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{region, kRights, uses, life});
  REQUIRE_MESSAGE(reply.ok(), reply.sentence());
  return reply.fixed<shmbw_ticket_create_reply>();
}

}  // namespace

TEST_CASE("a hundred thousand guessed tickets, used-up, expired and foreign ones are answered alike") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient maker = RawClient::connect(broker.socket());
    RawPacket hello = maker.hello();
    REQUIRE(hello.ok());
    RawClient client = greeted(broker);
    auto region = create_region(maker, 4096).region;
    const Token good = token_of(draw(maker, region, 1, 0).ticket);
    const Token used = token_of(draw(maker, region, 1, 0).ticket);
    const Token expired = token_of(draw(maker, region, 5, 1'000'000).ticket);
    CHECK(guess(client, {used}).second == 1);
    ::usleep(5000);

    std::vector<Token> wrong = {used, expired, Token{}, token_of(hello.fixed<shmbw_hello_reply>().fork_secret)};
    RawPacket group = maker.call(SHMBW_OP_GROUP_CREATE, shmbw_group_create{});
    wrong.push_back(token_of(group.fixed<shmbw_group_create_reply>().token));
    for (std::size_t bit = 0; bit < 128; ++bit) {
      wrong.push_back(good);
      wrong.back()[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    }
    std::mt19937_64 random(20231120);
    while (wrong.size() < 100'000) {
      Token token;
      for (auto& byte : token) byte = static_cast<std::uint8_t>(random());
      wrong.push_back(token);
    }
    auto [answers, hits] = guess(client, wrong);
    CHECK(hits == 0);
    CHECK(answers.size() == 1);
    CHECK(answers.begin()->starts_with(std::to_string(SHMB_E_NOT_FOUND)));
    CHECK(answers.begin()->find("ask its maker for a new one") != std::string::npos);
    CHECK(broker.running());
    // The one that was not guessed is still good, once.
    CHECK(guess(client, {good, good}).second == 1);
    CHECK(books_of(broker).tickets == 0);
    MESSAGE(wrong.size() << " wrong tickets were answered alike");
  });
}

TEST_CASE("a ticket gives its rights to any session that shows it, as often as it says, after its maker has gone") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient maker = greeted(broker), taker = greeted(broker);
    auto region = create_region(maker, 4096).region;
    Token three = token_of(draw(maker, region, 3, 0).ticket);
    shmbw_attach more = by_ticket(three);
    more.rights = kRights | SHMBW_RIGHT_RELEASE;
    RawPacket denied = taker.call_batch(SHMBW_OP_ATTACH, one(more));
    CHECK(denied.element<shmbw_outcome>(0).status == SHMB_E_DENIED);
    CHECK(error_of_element(denied).sentence.find("does not carry release") != std::string::npos);
    maker.close();
    std::vector<shmb::Fd> fds;
    auto got = ok_element<shmbw_attach_reply>(taker, SHMBW_OP_ATTACH, by_ticket(three), {}, &fds);
    CHECK(got.region.id == region.id);
    CHECK(got.rights == kRights);
    CHECK(fds.size() == 1);
    CHECK(guess(taker, std::vector(9, three)).second == 2);
  });
}

TEST_CASE("group tokens and fork secrets cannot be guessed, and a wrong one tells nothing") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient owner = RawClient::connect(broker.socket());
    auto hello = owner.hello().fixed<shmbw_hello_reply>();
    RawPacket made = owner.call(SHMBW_OP_GROUP_CREATE, shmbw_group_create{});
    REQUIRE(made.ok());
    auto group = made.fixed<shmbw_group_create_reply>();
    RawClient client = greeted(broker);
    std::mt19937_64 random(7);
    std::set<std::string> answers;
    auto try_join = [&](const Token& token) {
      shmbw_group_join join{};
      std::memcpy(join.token, token.data(), token.size());
      RawPacket reply = client.call(SHMBW_OP_GROUP_JOIN, join);
      CHECK(reply.status() == SHMB_E_NOT_FOUND);
      answers.insert(std::string(reply.rest()));
    };
    for (std::size_t bit = 0; bit < 128; ++bit) {
      Token token = token_of(group.token);
      token[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
      try_join(token);
    }
    for (int i = 0; i < 2000; ++i) {
      Token token;
      for (auto& byte : token) byte = static_cast<std::uint8_t>(random() | 1);
      try_join(token);
    }
    try_join(token_of(hello.fork_secret));
    CHECK(answers.size() == 1);

    answers.clear();
    RawClient child = RawClient::connect(broker.socket());
    auto try_follow = [&](std::uint64_t session, const Token& secret) {
      shmbw_hello wish = RawClient::greeting();
      wish.fork_session = session;
      std::memcpy(wish.fork_secret, secret.data(), secret.size());
      RawPacket reply = child.call(SHMBW_OP_HELLO, wish);
      CHECK(reply.status() == SHMB_E_NOT_FOUND);
      answers.insert(std::string(reply.rest()));
    };
    const Token secret = token_of(hello.fork_secret);
    for (std::size_t bit = 0; bit < 128; ++bit) {
      Token token = secret;
      token[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
      try_follow(hello.session, token);
    }
    for (std::uint64_t session : {hello.session + 1, hello.session + 99, UINT64_MAX}) try_follow(session, secret);
    try_follow(hello.session, Token{});
    CHECK(answers.size() == 1);
    // Not itself: a session that has not been greeted has the secret zero.
    for (std::uint64_t session = 1; session < 8; ++session) try_follow(session, Token{});
    CHECK(child.hello().ok());

    shmbw_group_join join{};
    std::memcpy(join.token, group.token, sizeof join.token);
    CHECK(client.call(SHMBW_OP_GROUP_JOIN, join).ok());
  });
}

}  // namespace wire_test
