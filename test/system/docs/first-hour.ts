/** Runs docs/first-hour.md from `git clone` to the replay and prints the seconds: `node test/system/docs/first-hour.ts`. */
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { freePort } from '../../../scripts/service.ts'
import { follow, ROOT, readSteps, toPattern } from '../../fixtures/page.ts'

const home = mkdtempSync(join(tmpdir(), 'botica-first-hour-'))
const clone = join(home, 'botica')
const say = (what: string) =>
  process.stdout.write(`${Math.round(performance.now() / 1000)} s ${what}\n`)
execFileSync('git', ['clone', '--quiet', ROOT, clone])
say('cloned')
const port = await freePort()
const service = spawn('npm', ['start'], {
  cwd: clone,
  env: { ...process.env, BOT_INPUT_ARCHIVE: 'true', PORT: String(port) },
  stdio: ['ignore', 'pipe', 'inherit'],
  detached: true,
})
// Not `close`: its output is not read to the end.
const ended = once(service, 'exit')
try {
  for await (const line of createInterface({ input: service.stdout })) {
    if (line.startsWith('Botica is ready')) break
  }
  say('packages are installed, the service is ready')
  const steps = readSteps('docs/first-hour.md')
  const onExit = { teardown: (end: () => void) => void process.once('exit', end) }
  const ran = await follow(onExit, steps, { folder: clone, baseUrl: `http://localhost:${port}` })
  for (const { command, expected = '…', printed, code } of ran) {
    if (code === 0 && toPattern(expected).test(printed.trim())) continue
    process.stderr.write(`${command}${printed}`)
    process.exitCode = 1
  }
  say(`${ran.length} blocks of the page are done, the replay among them`)
} finally {
  if (service.pid !== undefined) process.kill(-service.pid, 'SIGTERM')
  await ended
  rmSync(home, { recursive: true, force: true })
}
