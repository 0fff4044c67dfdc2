/** What GraphQL tells of its types, where the service keeps them from all but admins. */
import t from 'tap'
import { openBotica } from './fixtures/botica.ts'
import { ask } from './fixtures/graphql.ts'

const { admin, createMember } = await openBotica(t, { env: { INTROSPECTION_ENABLED: 'false' } })

t.test('a service may keep its types from all but admins', async (t) => {
  const { client } = await createMember()
  for (const query of [
    '{ __schema { queryType { name } } }',
    '{ __type(name: "Patient") { name } }',
  ]) {
    t.match(await ask(client, query), { status: 403, body: { id: 'forbidden' } })
    t.equal((await ask(admin, query)).status, 200)
  }
  t.equal((await ask(client, '{ __typename }')).status, 200)
})
