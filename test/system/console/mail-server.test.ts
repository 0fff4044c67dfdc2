/** A project administrator sets the mail server of the project, by which its mails are sent. */
import { join } from 'node:path'
import t from 'tap'
import { openBotica, until } from '../../fixtures/botica.ts'
import type { Untyped } from '../../fixtures/bots/bots.ts'
import { hasChromium } from '../../fixtures/http/chromium.ts'
import { barriers, click, openConsole, reads } from '../../fixtures/http/console.ts'
import { anEmail, invite } from '../../fixtures/invites.ts'
import { aPerson } from '../../fixtures/people.ts'
import { aCertificate } from '../../fixtures/services/certificate.ts'
import { startSmtp } from '../../fixtures/services/smtp.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'

if (!hasChromium()) {
  t.pass('there is no chromium here')
  process.exit()
}
const PATIENCE_MS = 90_000
const PASSWORD = 'the-password-of-the-server'
const certificate = aCertificate()
const smtp = await startSmtp(t, certificate)
const folder = t.testdir({ 'ca.pem': certificate.cert })
const botica = await openBotica(t, {
  worker: 'process',
  env: {
    DATABASE_URL: await createDatabase(t),
    WORKER_QUEUES: 'bots-sync,mail',
    NODE_EXTRA_CA_CERTS: join(folder, 'ca.pem'),
  },
})
const { services, baseUrl, project, admin } = botica
const readProject = async () =>
  (await admin.get<Untyped>(`/admin/projects/${project.id}`)).body.project

t.test('an administrator sets a mail server, sends by it, and removes it', async (t) => {
  const json = { 'Content-Type': 'application/json' }
  const path = `/admin/projects/${project.id}`
  await admin.post(`${path}/settings`, [{ name: 'fullTextSearch', valueBoolean: true }], json)
  await admin.post(`${path}/secrets`, [{ name: 'PARTNER', valueString: 'other' }], json)
  const { email } = await aPerson(services, project, { details: { admin: true } })
  const page = await openConsole(t, { baseUrl, email, path: '/project/mail' })
  await reads(page, 'Mails of the project go through this server')
  await page.write('input[name=host]', '127.0.0.1:25')
  await page.write('input[name=port]', String(smtp.port))
  await page.write('input[name=user]', 'clinic')
  await page.write('input[name=from]', 'Clinic <clinic@example.net>')
  await page.write('input[name=password]', PASSWORD)
  await page.press('form button[type=submit]')
  await reads(page, 'smtpHost must be a name or an address, without a port')
  t.equal(await page.value(`document.querySelector('[name=user]').value`), 'clinic')
  t.same(await barriers(page), [])

  // Added by another administrator since the page was opened.
  const { setting: before } = await readProject()
  const theirs = [...before, { name: 'ownSetting', valueInteger: 7 }]
  await admin.post(`${path}/settings`, theirs, json)
  await admin.post(`${path}/secrets`, [{ name: 'PARTNER', valueString: 'changed' }], json)
  await page.write('input[name=host]', '127.0.0.1')
  await page.press('form button[type=submit]')
  await page.shows(`document.querySelector('[name=password]')?.placeholder.startsWith('saved')`)
  t.equal(await page.value(`document.querySelector('[name=password]').value`), '')
  const shown = await page.value<string>(
    `document.documentElement.outerHTML + JSON.stringify([localStorage, sessionStorage])`,
  )
  t.notMatch(shown, PASSWORD, 'the password is not kept in the browser')
  const to = anEmail()
  await invite(admin, project.id, { email: to, scope: 'project' })
  await until(async () => smtp.received.some((mail) => mail.to.includes(to)), PATIENCE_MS)
  t.match(smtp.received[0], { from: 'clinic@example.net', user: 'clinic', isSecure: true })

  await page.goto(`${baseUrl}console/project/mail`)
  await page.shows(`document.querySelector('[name=host]')?.value === '127.0.0.1'`)
  t.equal(await page.value(`document.querySelector('[name=port]').value`), String(smtp.port))
  await click(page, 'Remove the mail server')
  await page.press('[data-confirm]')
  await page.shows(`document.querySelector('[name=host]')?.value === ''`)
  await until(async () => (await readProject()).secret.length === 1, PATIENCE_MS)
  const { setting, secret } = await readProject()
  t.same(setting, theirs, 'other settings stay')
  t.match(secret, [{ name: 'PARTNER', valueString: 'changed' }])
  t.same(
    page.complaints.filter((text) => !text.includes('400')),
    [],
  )
})
