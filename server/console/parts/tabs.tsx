/** Views of one thing, each at an address of its own. */
import { Tabs } from '@mantine/core'
import { useLocation } from 'wouter'

interface Props<N extends string> {
  readonly names: readonly N[]
  readonly labels: Readonly<Record<N, string>>
  readonly open: N
  /** The name of a view is appended to it. */
  readonly address: string
  readonly children: React.ReactNode
}

export function Views<N extends string>({ names, labels, open, address, children }: Props<N>) {
  const [, go] = useLocation()
  return (
    <Tabs value={open} onChange={(name) => go(`${address}/${name}`)}>
      <Tabs.List mb="md">
        {names.map((name) => (
          <Tabs.Tab key={name} value={name}>
            {labels[name]}
          </Tabs.Tab>
        ))}
      </Tabs.List>
      <Tabs.Panel value={open}>{children}</Tabs.Panel>
    </Tabs>
  )
}
