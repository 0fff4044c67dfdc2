import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'

const { admin } = await openBotica(t)

t.test('rejects an unreadable lifetime on every path', async (t) => {
  const aClient = { resourceType: 'ClientApplication', name: 'Long' }
  const refusal = (name: string) => ({
    status: 400,
    body: { issue: [{ expression: [`ClientApplication.${name}`] }] },
  })
  const { id } = await admin.create(aClient)
  for (const name of ['accessTokenLifetime', 'refreshTokenLifetime']) {
    for (const value of ['long', '1', '1.5h', '-1h', '1h ']) {
      const odd = { ...aClient, [name]: value }
      t.match(await admin.post('ClientApplication', odd), refusal(name), `${name} ${value}`)
      t.match(await admin.put(`ClientApplication/${id}`, { ...odd, id }), refusal(name))
    }
    const patch = [{ op: 'add', path: `/${name}`, value: 'long' }]
    t.match(await admin.patch(`ClientApplication/${id}`, patch), refusal(name))
    const entry = {
      resource: { ...aClient, [name]: 'long' },
      request: { method: 'POST', url: 'ClientApplication' },
    }
    const bundle = { resourceType: 'Bundle', type: 'transaction', entry: [entry] }
    t.equal((await admin.post('', bundle)).status, 400)
    const fine = { ...aClient, id, [name]: '2h' }
    t.equal((await admin.put(`ClientApplication/${id}`, fine)).status, 200)
  }
})
