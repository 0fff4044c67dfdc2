/** NEW_PROJECT_POLICIES: a new project begins with a policy for each kind of member. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aParameters } from '../../fixtures/resources.ts'

interface Entries {
  readonly entry?: readonly { readonly resource: { readonly name: string } }[]
}

interface Founded {
  readonly id: string
  readonly defaultAccessPolicies?: readonly { readonly profileType: string }[]
}

const founding = aParameters({ name: 'name', valueString: 'Clinic' })

t.test('makes policies with a new project and uses them for its members', async (t) => {
  const { superAdmin } = await openBotica(t, { env: { NEW_PROJECT_POLICIES: 'true' } })
  const made = await superAdmin.post<Founded>('Project/$init', founding)
  t.equal(made.status, 201, made.text)
  const kinds = ['Admin', 'Practitioner', 'Patient', 'RelatedPerson']
  t.same(
    made.body.defaultAccessPolicies?.map(({ profileType }) => profileType),
    kinds,
  )
  const path = `/admin/projects/${made.body.id}/invite`
  const person = { firstName: 'A', lastName: 'B', sendEmail: false }
  for (const [i, changes] of [
    { resourceType: 'Practitioner', membership: { admin: true } },
    { resourceType: 'Practitioner' },
    { resourceType: 'Patient' },
  ].entries()) {
    const email = `${i}-${made.body.id}@example.org`
    const invited = await superAdmin.post<{ accessPolicy?: object }>(
      path,
      { ...person, ...changes, email },
      { 'Content-Type': 'application/json' },
    )
    t.equal(invited.status, 200, invited.text)
    t.ok(invited.body.accessPolicy, JSON.stringify(changes))
  }
  const found = await superAdmin.get<Entries>(`AccessPolicy?_project=${made.body.id}`)
  const all = [...(found.body.entry ?? [])].map(({ resource }) => resource.name).sort()
  t.same(all, kinds.map((kind) => `Default policy: ${kind}`).sort())
})

t.test('makes none unless it is set', async (t) => {
  const { superAdmin } = await openBotica(t)
  const made = await superAdmin.post<Founded>('Project/$init', founding)
  t.equal(made.body.defaultAccessPolicies, undefined)
})
