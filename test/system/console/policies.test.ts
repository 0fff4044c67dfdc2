/** Access policies are composed in a form, from templates that grant only the described access. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import { exitWithoutChromium } from '../../fixtures/http/chromium.ts'
import {
  barriers,
  click,
  openConsole,
  reads,
  selectOption,
  withText,
} from '../../fixtures/http/console.ts'
import { aPerson } from '../../fixtures/people.ts'

interface Found {
  readonly total?: number
  readonly entry: readonly { readonly resource: Record<string, unknown> & { id: string } }[]
}

exitWithoutChromium(t)
const botica = await openBotica(t)
const { services, baseUrl, project, admin } = botica
const { email } = await aPerson(services, project, { details: { admin: true } })
const [ward, other] = [await anOrganization('Ward'), await anOrganization('Other')]
const study = await admin.create({ resourceType: 'ResearchStudy', status: 'active' })
const [mine, foreign] = [await aCase('Chalmers', ward), await aCase('Foster', other)]
await admin.create({
  resourceType: 'ResearchSubject',
  status: 'on-study',
  study: { reference: `ResearchStudy/${study.id}` },
  individual: { reference: mine },
})
const page = await openConsole(t, { baseUrl, email, path: '/policies/new' })

async function anOrganization(name: string): Promise<string> {
  const { id } = await admin.create({ resourceType: 'Organization', name })
  return `Organization/${id}`
}

/** Creates a patient with an observation and an appointment; returns the reference. */
async function aCase(family: string, organization: string): Promise<string> {
  const { id } = await admin.create({
    resourceType: 'Patient',
    name: [{ family }],
    birthDate: '1974-12-25',
    managingOrganization: { reference: organization },
  })
  const subject = { reference: `Patient/${id}`, display: family }
  await admin.create({
    resourceType: 'Observation',
    status: 'final',
    code: { text: 'Weight' },
    subject,
  })
  await admin.create({
    resourceType: 'Appointment',
    status: 'booked',
    start: '2030-01-01T08:00:00Z',
    end: '2030-01-01T09:00:00Z',
    participant: [{ actor: subject, status: 'accepted' }],
  })
  return subject.reference
}

async function findPolicy(name: string): Promise<Record<string, unknown> & { id: string }> {
  const { body } = await admin.get<Found>(`AccessPolicy?name:exact=${encodeURIComponent(name)}`)
  const [found] = body.entry ?? []
  if (found === undefined) throw new Error(`No policy ${name}`)
  return found.resource
}

/** Chooses an option of a select that has the focus by its text. */
async function choose(selector: string, typed: string, option = typed): Promise<void> {
  await page.press(selector)
  await page.write(selector, typed)
  await click(page, option)
}

/** Signs in a client whose member has the policy with parameters. */
async function memberWith(name: string, parameters: Readonly<Record<string, string>>) {
  const policy = await findPolicy(name)
  const { id, client } = await botica.createMember()
  const { body } = await admin.get<Found>(`ProjectMembership?profile=ClientApplication/${id}`)
  const [member] = body.entry
  const parameter = Object.entries(parameters).map(([name, reference]) => ({
    name,
    valueReference: { reference },
  }))
  await admin.put(`ProjectMembership/${member?.resource.id}`, {
    ...member?.resource,
    access: [{ policy: { reference: `AccessPolicy/${policy.id}` }, parameter }],
  })
  return client
}

async function listIds(client: Client, type: string): Promise<readonly string[] | number> {
  const { status, body } = await client.get<Found>(type)
  return status === 200 ? (body.entry ?? []).map(({ resource }) => resource.id) : status
}

t.test('a policy is composed of entries without JSON', async (t) => {
  await click(page, 'Save')
  await reads(page, 'Give the policy a name.')
  await page.write('input[name=name]', 'Ward A')
  await click(page, 'Add an entry')
  await choose('[data-entry="0"] input[data-type]', 'Patient')
  await reads(page, 'Every Patient of the project.')
  await click(page, 'Add a condition')
  await page.write('[data-entry="0"] input[data-parameter]', 'organization')
  await page.key('Escape')
  await page.press('[data-entry="0"] input[data-value]')
  await click(page, '%organization')
  await choose('[data-entry="0"] input[data-elements=hiddenFields]', 'telecom')
  await choose('[data-entry="0"] input[data-elements=readonlyFields]', 'birthDate')
  await page.key('Escape')
  t.same(await barriers(page), [])
  await click(page, 'Save')
  await page.shows(`/policies\\/[0-9a-f-]{36}$/.test(location.pathname)`)
  t.match(await findPolicy('Ward A'), {
    resource: [
      {
        resourceType: 'Patient',
        criteria: 'Patient?organization=%organization',
        hiddenFields: ['telecom'],
        readonlyFields: ['birthDate'],
      },
    ],
  })
})

t.test('the form and the JSON are one draft', async (t) => {
  await click(page, 'JSON')
  const stored = await findPolicy('Ward A')
  const [entry] = stored.resource as object[]
  const constraint = { language: 'text/fhirpath', expression: '%after.exists()' }
  const resource = [
    { ...entry, writeConstraint: [constraint] },
    { resourceType: 'Observation', readonly: true, criteria: 'Observation?code=a%26b' },
  ]
  await page.write('.cm-content', JSON.stringify({ ...stored, resource }))
  await click(page, 'Entries')
  await reads(page, 'This entry has a compartment or write constraints.')
  await page.shows(`document.querySelector('[data-entry="1"] input[data-value]').value === 'a&b'`)
  await page.press('[aria-label="Move up Entry 2: Observation"]')
  await page.shows(`document.querySelector('[data-entry="0"] input[data-value]').value === 'a&b'`)
  await click(page, 'Save')
  // The form begins again with the saved version, without a draft.
  await page.shows(
    `![...document.querySelectorAll('button')].some(({ innerText }) => innerText === 'Discard')`,
  )
  const { resource: written } = await findPolicy('Ward A')
  t.match(written, [{ criteria: 'Observation?code=a%26b' }, { writeConstraint: [constraint] }])
  await click(page, 'JSON')
  await page.write('.cm-content', '{ "resourceType": ')
  await click(page, 'Entries')
  await reads(page, 'The form cannot show this policy')
  await click(page, 'Discard')
  await page.shows(`document.querySelector('[data-entry="1"]')`)
})

t.test('a form typed back to its saved values is not changed', async (t) => {
  const { id } = await findPolicy('Ward A')
  await page.goto(`${baseUrl}console/policies/${id}`)
  await page.write('input[name=name]', 'Ward B')
  await page.shows(withText('Discard'))
  await page.write('input[name=name]', 'Ward A')
  await page.shows(`!${withText('Discard')}`)
  t.equal(await page.value(`document.querySelector('input[name=name]').value`), 'Ward A')
})

t.test('a policy that is typed does not overwrite one that was saved meanwhile', async (t) => {
  const { id, ...before } = await findPolicy('Ward A')
  await page.goto(`${baseUrl}console/policies/${id}`)
  await page.write('input[name=name]', 'Ward B')
  const resource = [{ resourceType: 'Encounter' }]
  await admin.put(`AccessPolicy/${id}`, { ...before, id, resource })
  await click(page, 'Save')
  await reads(page, 'was saved while you were typing')
  t.equal(await page.value(`document.querySelector('input[name=name]').value`), 'Ward B')
  t.match(await findPolicy('Ward A'), { resource })
  t.same(await barriers(page), [])
  const apply = `[...document.querySelectorAll('button')].find(
    ({ textContent }) => textContent.startsWith('Apply my changes'))`
  await page.act(apply, 'found.click()')
  await page.shows(`document.querySelectorAll('[data-entry]').length === 1`)
  t.equal(await page.value(`document.querySelector('input[name=name]').value`), 'Ward B')
  await click(page, 'Save')
  await reads(page, 'Saved')
  t.same((await findPolicy('Ward B')).resource, resource)
})

const TEMPLATES = [
  ['frontDesk', 'Front desk'],
  ['organization', 'One organization'],
  ['portal', 'Patient portal'],
  ['research', 'Research'],
] as const

for (const [template, name] of TEMPLATES) {
  t.test(`the template "${name}" is saved as it is`, async (t) => {
    await page.goto(`${baseUrl}console/policies/new`)
    await selectOption(page, 'template', template)
    await page.shows(`document.querySelector('input[name=name]').value === '${name}'`)
    t.same(await barriers(page), [])
    t.ok(await page.value('document.documentElement.scrollWidth <= innerWidth'))
    await click(page, 'Save')
    await page.shows(`/policies\\/[0-9a-f-]{36}$/.test(location.pathname)`)
    const { resource = [] } = await findPolicy(name)
    t.ok(Array.isArray(resource) && resource.length > 2)
  })
}

t.test('members with a template see the patients that it names', async (t) => {
  const ids = async (client: Client) => ({
    patients: await listIds(client, 'Patient'),
    observations: (await client.get<Found>('Observation')).body.entry?.map(
      ({ resource }) => resource.subject,
    ),
    appointments: await listIds(client, 'Appointment'),
  })
  const [, own] = mine.split('/')
  t.not(mine, foreign)
  const desk = await ids(await memberWith('Front desk', { organization: ward }))
  t.match(desk, { patients: [own], observations: undefined })
  t.equal((desk.appointments as readonly string[]).length, 1)
  const house = await ids(await memberWith('One organization', { organization: ward }))
  t.match(house, { patients: [own], observations: [{ reference: mine }] })
  t.equal(house.observations?.length, 1)
  t.equal((house.appointments as readonly string[]).length, 1)
  const home = await ids(await memberWith('Patient portal', { patient: mine }))
  t.match(home, { patients: [own], observations: [{ reference: mine }] })
  t.equal(home.observations?.length, 1)
  t.equal((home.appointments as readonly string[]).length, 1)
})

t.test('researchers see the subjects of their study without names', async (t) => {
  const client = await memberWith('Research', { study: `ResearchStudy/${study.id}` })
  const { body: patients } = await client.get<Found>('Patient')
  t.equal(patients.entry.length, 1)
  t.equal(patients.entry[0]?.resource.name, undefined)
  t.equal(patients.entry[0]?.resource.birthDate, undefined)
  const { body: observations } = await client.get<Found>('Observation')
  t.equal(observations.entry.length, 1)
  t.same(observations.entry[0]?.resource.subject, { reference: mine })
  t.equal((await client.get('Patient?name=Chalmers')).status, 403)
  t.equal((await client.get('Observation?subject:Patient.name=Chalmers')).status, 403)
})
