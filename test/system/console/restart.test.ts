/** A web process ends while a page follows a log, or signs no one in for a while: the page goes on afterwards. */
import t from 'tap'
import { aBot, handler } from '../../fixtures/bots/bots.ts'
import { AT_GATE, aGate } from '../../fixtures/bots/gates.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import { click, openConsole, reads } from '../../fixtures/http/console.ts'
import { PASSWORD } from '../../fixtures/people.ts'
import { openCluster, said } from '../../fixtures/services/cluster.ts'

exitWithoutChromium(t)
const cluster = await openCluster(t)
await cluster.startWorker()
const tenant = await cluster.createTenant('Clinic')
const { admin, project } = tenant
const { baseUrl } = cluster
const email = 'ada@example.org'
await cluster.superAdmin.post(`/admin/projects/${project.id}/invite`, {
  resourceType: 'Practitioner',
  firstName: 'Ada',
  lastName: 'Lovelace',
  email,
  password: PASSWORD,
  sendEmail: false,
  membership: { admin: true },
})
const body = `console.log('has begun');${AT_GATE}\nconsole.log('has gone on')`
const bot = await aBot(tenant, handler(body), { fields: { timeout: 80 } })

t.test('the lines of a run that outlives the web process are read to its end', async (t) => {
  const page = await openConsole(t, { baseUrl, email, path: `/bots/${bot}/live` })
  await reads(page, 'Listening')
  const gate = aGate(admin)
  const asked = { Prefer: 'respond-async', 'Content-Type': 'application/json' }
  await admin.post(`Bot/${bot}/$execute`, { gate: gate.gate }, asked)
  await page.shows(`document.querySelector('#live')?.textContent.includes('has begun')`)
  cluster.web.child.kill('SIGKILL')
  await reads(page, 'Connection lost, trying again')
  await said(cluster.run('server'), '"listening"')
  await reads(page, 'Listening')
  await gate.open()
  await page.shows(`document.querySelector('#live')?.textContent.includes('has gone on')`)
  await page.shows(`document.querySelector('#live')?.textContent.includes('■ ok')`)
  await page.shows(`document.querySelector('#live')?.textContent.includes('has begun')`)
})

t.test('a session outlives an outage of its renewal', async (t) => {
  const page = await openConsole(t, { baseUrl, email, path: '/agents' })
  // The service refuses a token that has expired, and a proxy in front of it answers all renewals.
  await page.value(`{
    const send = fetch
    globalThis.isOut = true
    globalThis.fetch = async (input, init) => {
      if (!isOut) return await send(input, init)
      const isRenewal = new URL(input, location.href).pathname === '/oauth2/token'
      return new Response('<html></html>', { status: isRenewal ? 503 : 401 })
    }
  }`)
  await click(page, 'Access policies')
  await reads(page, 'The service does not respond')
  t.notOk(await page.value(`document.body.innerText.includes('Your session has ended')`))
  await page.value('globalThis.isOut = false')
  await click(page, 'Try again')
  await reads(page, 'No access policy yet')
})
