/**
 * People of several projects, of one project only, and super administrators reach their projects in the console.
 * Imports the system's Project, to show it in a list.
 */
import t from 'tap'
import { SYSTEM_PROJECT } from '../../../shared/access/project-context.ts'
import { openBotica } from '../../fixtures/botica.ts'
import { exitWithoutChromium, openPage } from '../../fixtures/http/chromium.ts'
import {
  barriers,
  click,
  endSession,
  OPEN_MENU,
  openConsole,
  reads,
  signInOn,
} from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'

exitWithoutChromium(t)
const botica = await openBotica(t)
const { services, baseUrl, project } = botica
const other = await botica.createTenant()
const projectName = ({ name }: { readonly [name: string]: unknown }) => String(name)

t.test('a member of two projects switches without another password', async (t) => {
  const person = await aPerson(services, project, { details: { admin: true } })
  await aPerson(services, other.project, { user: person.user, details: { admin: true } })
  const page = await openPage(t, ['--window-size=1440,900'])
  await page.goto(`${baseUrl}console/p/${project.id}`)
  await signInOn(page, person.email)
  await page.shows(
    `document.querySelector('[data-project]')?.textContent === '${projectName(project)}'`,
  )
  await page.press('[data-project]')
  await page.shows(`document.querySelector('[role=menuitem]')`)
  t.same(await barriers(page, OPEN_MENU), [])
  await click(page, projectName(other.project))
  await page.shows(
    `document.querySelector('[data-project]')?.textContent === '${projectName(other.project)}'`,
  )
  await page.goto(`${baseUrl}console/p/${project.id}`)
  await page.shows(
    `document.querySelector('[data-project]')?.textContent === '${projectName(project)}'`,
  )
  t.same(page.complaints, [])
})

t.test('typed text stays in the project in which it was typed', async (t) => {
  const person = await aPerson(services, project, { details: { admin: true } })
  await aPerson(services, other.project, { user: person.user, details: { admin: true } })
  const page = await openPage(t, ['--window-size=1440,900'])
  const open = async ({ id, name }: { readonly id?: string; readonly name?: unknown }) => {
    await page.goto(`${baseUrl}console/p/${id}`)
    await page.shows(`document.querySelector('[data-project]')?.textContent === '${name}'`)
    await page.goto(`${baseUrl}console/members/new-client`)
    await page.shows(`document.querySelector('input[name=name]')`)
    return await page.value<string>(`document.querySelector('input[name=name]').value`)
  }
  await page.goto(`${baseUrl}console/p/${project.id}`)
  await signInOn(page, person.email)
  t.equal(await open(project), '')
  await page.write('input[name=name]', 'Pharmacy')
  t.equal(await open(other.project), '')
  t.notOk(await page.value(`document.body.innerText.includes('text you typed earlier')`))
  t.equal(await open(project), 'Pharmacy')
})

t.test('a person whose session ends signs in to the same project again', async (t) => {
  const person = await aPerson(services, project, { details: { admin: true } })
  await aPerson(services, other.project, { user: person.user, details: { admin: true } })
  const page = await openPage(t, ['--window-size=1440,900'])
  const isOpen = `document.querySelector('[data-project]')?.textContent === '${projectName(other.project)}'`
  await page.goto(`${baseUrl}console/p/${other.project.id}`)
  await signInOn(page, person.email)
  await page.shows(isOpen)
  await endSession(page)
  // It may be served for some seconds more.
  services.principals.forget()
  await page.value(`sessionStorage.mark = 'not cleared'`)
  await click(page, 'Members')
  await reads(page, 'Your session has ended')
  // The API client clears the session storage with a request that has no token any more.
  await click(page, 'Bots')
  await page.shows('sessionStorage.mark === undefined')
  await click(page, 'Sign in again')
  await signInOn(page, person.email)
  await page.shows(isOpen)
  t.equal(await page.value('location.pathname'), '/console/bots')
})

t.test('signs an account of one project in at the address of the project', async (t) => {
  const { email } = await aPerson(services, project, {
    isProjectScoped: true,
    details: { admin: true },
  })
  const page = await openPage(t, ['--window-size=1440,900'])
  await page.goto(`${baseUrl}console`)
  await click(page, 'My account is for one project only')
  t.same(await barriers(page), [])
  await page.type('project', 'my clinic')
  await page.press('button[type=submit]')
  await page.shows(`document.getElementById('problem').textContent.includes('not the id')`)
  await page.type('project', `https://example.org/console/p/${project.id.toUpperCase()}`)
  await page.press('button[type=submit]')
  await page.shows(`location.search.includes('project_id=${project.id}')`)
  await signInOn(page, email)
  await reads(page, projectName(project))
})

t.test('a super administrator joins a project to open it', async (t) => {
  const { email } = await aPerson(
    services,
    { resourceType: 'Project', ...SYSTEM_PROJECT },
    {
      details: { admin: true },
    },
  )
  const page = await openConsole(t, { baseUrl, email, path: '/service/projects' })
  const row = `[...document.querySelectorAll('tr')].find((one) => one.textContent.includes('${projectName(other.project)}'))`
  await page.act(`${row}?.querySelector('button')`, 'found.click()')
  await reads(page, 'the audit trail records it')
  t.same(await barriers(page), [])
  await page.press('[data-confirm]')
  await page.shows(
    `document.querySelector('[data-project]')?.textContent === '${projectName(other.project)}'`,
  )
  const { text } = await other.admin.get('ProjectMembership?_count=100')
  t.match(text, 'Practitioner/')
})
