/** Imports the matching of events, to run it without a worker. */
import t from 'tap'
import { matchEvents } from '../../../shared/subscriptions/events.ts'
import { resendNewest } from '../../../shared/subscriptions/pending-deliveries.ts'
import { createDatabase } from '../../fixtures/store/own-database.ts'
import { openTestStore } from '../../fixtures/store/store.ts'

process.env.DATABASE_URL = await createDatabase(t)
const { repository, aMember } = await openTestStore(t)

t.test('reports the decision of each Subscription in a verbose $resend', async (t) => {
  const admin = await aMember({ isProjectAdmin: true })
  const subscribe = (criteria: string) =>
    repository.create(admin, {
      resourceType: 'Subscription',
      status: 'active',
      reason: 'test',
      criteria,
      channel: { type: 'rest-hook', endpoint: 'https://receiver.example.com/' },
    })
  const { id } = await repository.create(admin, { resourceType: 'Patient', active: true })
  const [waiting, other] = await Promise.all(
    ['true', 'false'].map((is) => subscribe(`Patient?active=${is}`)),
  )
  const told = async (verbose: boolean) => {
    const wish = { interaction: 'create', subscription: undefined, verbose } as const
    await repository.withStore((store) =>
      resendNewest(store, admin, { type: 'Patient', id, ...wish }),
    )
    const found = new Map<string, boolean>()
    const { deliveries } = await repository.withStore((store) =>
      matchEvents(store, 100, {
        author: async () => admin,
        pace: async () => ({}),
        sockets: async () => new Map(),
        publish: async () => undefined,
        skipped: (subscription) => t.fail(`${subscription} was skipped`),
        compared(subscription, event, isPending) {
          t.equal(event.id, id)
          found.set(subscription, isPending)
        },
      }),
    )
    t.equal(deliveries.length, 1)
    return found
  }
  t.equal((await told(false)).size, 0)
  const found = await told(true)
  t.equal(found.get(waiting?.id ?? ''), true)
  t.equal(found.get(other?.id ?? ''), false)
})
