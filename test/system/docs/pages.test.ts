/** The commands of the documentation print the output on its pages, against a fresh service. */
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { follow, makeClone, pagesWithSteps, readSteps, toPattern } from '../../fixtures/page.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

const FIRST = ['README.md', 'docs/first-hour.md']
const MAKE_BOT = { command: 'npm run -s first-bot\n', expected: undefined }

t.setTimeout(400_000)
// Pages wait for the service for most of their time, and are isolated from each other.
t.jobs = 4
const home = mkdtempSync(join(tmpdir(), 'botica-pages-'))
t.teardown(() => rmSync(home, { recursive: true, force: true }))
const botica = await openBotica(t, {
  worker: 'process',
  env: {
    DATABASE_URL: await createDatabase(t),
    STORAGE_URL: `file:${home}/storage`,
    WORKER_QUEUES: 'bots-sync,bots-async,requests,schedules,export,import,change,upkeep',
    BOT_INPUT_ARCHIVE: 'true',
  },
})
const { superAdminClientId: clientId, superAdminClientSecret: clientSecret } =
  botica.services.config

const all = pagesWithSteps()
for (const page of [...FIRST, ...all.filter((name) => !FIRST.includes(name))]) {
  t.test(`${page} prints its documented output`, { buffered: true }, async (t) => {
    const folder = mkdtempSync(join(home, 'clone-'))
    makeClone(folder, { clientId, clientSecret })
    const own = readSteps(page)
    const steps = own.some(({ command }) => command.includes('first-bot\n'))
      ? own
      : [MAKE_BOT, ...own]
    for (const { command, expected, printed, code } of await follow(t, steps, {
      folder,
      baseUrl: botica.baseUrl,
      asWritten: FIRST.includes(page),
    })) {
      t.equal(code, 0, `${command}\n${printed}`)
      if (expected !== undefined) t.match(printed.trim(), toPattern(expected), command)
    }
  })
}
