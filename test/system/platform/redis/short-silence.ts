/** Imported first, since settings are read when a module loads. Longer than blocking commands. */
process.env.WAITS = JSON.stringify({
  ...JSON.parse(process.env.WAITS ?? '{}'),
  redisSilenceMs: 15_000,
})
