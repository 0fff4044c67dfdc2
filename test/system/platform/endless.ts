/** A test that never ends, for tests of `npm test`. It creates the file READY_FILE once every kind of process runs. */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { aBot, execute, handler } from '../../fixtures/bots/bots.ts'
import { follow } from '../../fixtures/page.ts'
import { openCluster } from '../../fixtures/services/cluster.ts'

t.setTimeout(600_000)
const cluster = await openCluster(t)
await cluster.startWorker()
const tenant = await cluster.createTenant('Endless')
await execute(tenant.admin, await aBot(tenant, handler('return 1')))
const folder = mkdtempSync(join(tmpdir(), 'botica-endless-'))
t.teardown(() => rmSync(folder, { recursive: true, force: true }))
mkdirSync(join(folder, '.data'))
const command = 'sleep 1234 & touch "$READY_FILE"; while sleep 1; do :; done'
await follow(t, [{ command, expected: undefined }], { folder, baseUrl: cluster.baseUrl })
