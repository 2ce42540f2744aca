# Sidekiq's queue through quickack: `produce PORT COUNT LEDGER` as a program, and as the file that
# `sidekiq -r` reads when it consumes, with PORT and LEDGER in the environment.
#
# Each job counts itself at the Redis at LEDGER: hash `done`, field: the job's number.

require "sidekiq"

port = ENV["PORT"] || ARGV[1]
LEDGER = Redis.new(port: Integer(ENV["LEDGER"] || ARGV[3]))
settings = { url: "redis://127.0.0.1:#{port}/0" }
Sidekiq.configure_client { |config| config.redis = settings }
Sidekiq.configure_server { |config| config.redis = settings }

class Note
  include Sidekiq::Worker

  def perform(number)
    LEDGER.hincrby("done", number, 1)
  end
end

if ARGV[0] == "produce"
  numbers = (0...Integer(ARGV[2])).map { |number| [number] }
  numbers.each_slice(100) { |some| Sidekiq::Client.push_bulk("class" => Note, "args" => some) }
end
